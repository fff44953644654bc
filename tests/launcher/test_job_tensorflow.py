"""Real TensorFlow workers: their servers take the held ports, and a stuck one is ended too."""

SCRIPT = """
    import os
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def total():
        def replica():
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(21.0))
        return strategy.run(replica)

    print("total", total().numpy())

    if os.environ["TFDIST_RANK"] == "1":
        raise ValueError("user bug on worker 1")
    total()  # waits for worker 1
"""


def test_workers_meet_on_the_held_ports_and_a_stuck_one_is_killed(jobs):
    jobs.script(SCRIPT)
    ended = jobs.run("-n", "2", "--grace", "1", "script.py", timeout=120)
    assert sorted(ended.stdout.splitlines()) == ["[0] total 42.0", "[1] total 42.0"], ended.stderr
    assert ended.returncode == 1
    # TensorFlow's preemption notifier swallows SIGTERM, so that only SIGKILL ends worker 0.
    assert "worker 0 did not end within 1 s: killed" in ended.stderr
    report = ended.stderr.split("worker 1 failed first (exit code 1)")[1]
    assert "  | ValueError: user bug on worker 1" in report
    assert "worker 0: ended as a consequence (killed: it did not react to SIGTERM)" in report
