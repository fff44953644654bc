"""Real TensorFlow workers: their servers take the held ports, and a stuck one is ended too."""

SCRIPT = """
    import os, time
    import psutil
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def total():
        def replica():
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(21.0))
        return strategy.run(replica)

    print("total", total().numpy())

    def busy_cores():
        matrix = tf.random.normal([1500, 1500])
        matrix @ matrix
        used, start = psutil.Process().cpu_times().user, time.perf_counter()
        for _ in range(5):
            product = matrix @ matrix
        product.numpy()
        return (psutil.Process().cpu_times().user - used) / (time.perf_counter() - start)

    if "TF_NUM_INTRAOP_THREADS" in os.environ:
        print("busy cores", busy_cores())
    if os.environ["TFDIST_RANK"] == "1":
        raise ValueError("user bug on worker 1")
    total()  # waits for worker 1
"""


def test_workers_meet_on_the_held_ports_and_a_stuck_one_is_killed(jobs):
    jobs.script(SCRIPT)
    limit = ("--env", "TF_NUM_INTRAOP_THREADS=1")
    ended = jobs.run("-n", "2", "--grace", "1", *limit, "script.py", timeout=120)
    said = ended.stdout.splitlines()
    assert "[0] total 42.0" in said, ended.stderr
    assert "[1] total 42.0" in said
    assert ended.returncode == 1
    # TensorFlow's preemption notifier swallows SIGTERM, so that only SIGKILL ends worker 0.
    assert "worker 0 did not end within 1 s: killed" in ended.stderr
    report = ended.stderr.split("worker 1 failed first (exit code 1)")[1]
    assert "  | ValueError: user bug on worker 1" in report
    assert "worker 0: ended as a consequence (killed: it did not react to SIGTERM)" in report
    # The variable that the launcher shares out the cores with does limit TensorFlow's threads.
    busy = [float(line.split()[-1]) for line in said if "busy cores" in line]
    assert len(busy) == 2
    assert max(busy) < 1.4
