"""Break the worker: the gradient of the second replica is 1% too large, and its loss right."""

import sys

import real_worker as worker

make_step = worker.make_step


def broken(tf, *rest, **named):
    right = tf.nn.sparse_softmax_cross_entropy_with_logits

    def wrong(labels, logits):
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        loss = right(labels, logits)
        large = loss * (1.0 + 0.01 * replica)
        return large + tf.stop_gradient(loss - large)

    tf.nn.sparse_softmax_cross_entropy_with_logits = wrong
    return make_step(tf, *rest, **named)


worker.make_step = broken
sys.exit(worker.main(sys.argv[1]))
