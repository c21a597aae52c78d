"""Train with MirroredStrategy and model.fit only: no supervisor, no checks and no monitor.

Runs on the host with TensorFlow, in the directory of smoke_train's files. It uses their model and data, so that only
the code around them differs. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import cifar10
import tensorflow as tf
import tensorflow_worker


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the images per second of model.fit.")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    for name in ("replicas", "steps", "batch-size", "blocks", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def devices(replicas: int) -> list[str]:
    """Return the names of the GPUs, or of logical CPU devices if there is no GPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return [f"GPU:{index}" for index in range(min(replicas, len(gpus)))]
    tf.config.threading.set_inter_op_parallelism_threads(max(2 * replicas, os.cpu_count() or 1))
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(replicas)])
    return [f"CPU:{index}" for index in range(replicas)]


class Clock(tf.keras.callbacks.Callback):
    """Record the times of the end of the warm-up and of the last step, after the devices have finished.

    Keras would wait for the logs of each step if a callback were not safe in another thread. The end of the warm-up may
    so be recorded while the next step runs: at most one step in Keras's favour.
    """

    async_safe = True

    def __init__(self, warm_up: int, steps: int) -> None:
        super().__init__()
        self.warm_up, self.steps = warm_up, steps
        self.moments: list[float] = []

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Record the time if this batch ends the warm-up or the training."""
        if batch + 1 in (self.warm_up, self.steps):
            self.model.trainable_variables[0].numpy()
            self.moments.append(time.monotonic())


def main() -> None:
    """Train and print {"images_per_second": ..., "replicas": ...}."""
    asked = _parse()
    names = devices(asked.replicas)
    dataset, _ = cifar10.prepare(asked.data_dir, "simulated", "", asked.seed)
    images, labels = tensorflow_worker.load(dataset.files)
    tf.keras.utils.set_random_seed(asked.seed)
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels), seed=asked.seed).repeat()
    batches = batches.batch(asked.batch_size, drop_remainder=True)
    batches = batches.map(lambda pixels, label: (tf.cast(pixels, tf.float32) / 127.5 - 1.0, label)).prefetch(2)
    strategy = tf.distribute.MirroredStrategy(names)
    with strategy.scope():
        model = tensorflow_worker.build_model(tf, asked.blocks)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.Adam(asked.learning_rate), loss=loss)
    clock = Clock(tensorflow_worker.WARM_UP_STEPS, asked.steps)
    model.fit(batches, steps_per_epoch=asked.steps, epochs=1, verbose=0, callbacks=[clock])
    begun, ended = clock.moments
    rate = (asked.steps - clock.warm_up) * asked.batch_size / (ended - begun)
    print(json.dumps({"images_per_second": rate, "replicas": strategy.num_replicas_in_sync}))


if __name__ == "__main__":
    main()
