"""Break the worker: the loss and the gradient of the second replica are 5% too large."""

import sys

import real_worker as worker

make_step = worker.make_step


def broken(tf, *rest, **named):
    right = tf.nn.sparse_softmax_cross_entropy_with_logits

    def wrong(labels, logits):
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        return right(labels, logits) * (1.0 + 0.05 * replica)

    tf.nn.sparse_softmax_cross_entropy_with_logits = wrong
    return make_step(tf, *rest, **named)


worker.make_step = broken
sys.exit(worker.main(sys.argv[1]))
