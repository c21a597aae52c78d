"""Train with model.fit of Keras in place of smoke_train's own loop (protocol: train_process.py).

Runs in the directory of smoke_train's files, as `python keras_fit_worker.py REQUEST.json`, and on a single host only:
Keras 3 does not support MultiWorkerMirroredStrategy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import tensorflow_worker as worker


def fit(tf: Any, strategy: Any, data: Any, options: Any, batch_size: int, steps: int, report: Any) -> Any:
    """Train the same way with model.fit of Keras; return the model and the devices that hold its weights."""

    class Reporter(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            # Keras reports the mean since the last reset; with this reset, that of the batch.
            (getattr(self.model, "reset_metrics", None) or self.model.reset_states)()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            report(batch + 1, float(logs["loss"]))

    with strategy.scope():
        model = worker.build_model(tf, options.blocks)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.Adam(options.learning_rate), loss=loss)
    batches = worker.input_pipeline(tf, data, batch_size, options.seed)
    model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[Reporter()])
    return model, [copy.device for copy in worker.replica_copies(strategy, model.trainable_variables[0])]


if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1], fit))
