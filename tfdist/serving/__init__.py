"""The processes of a parameter server cluster: how they find each other, and how they end.

The chief runs the user's program. A worker or ps is a TensorFlow server, which by itself knows
neither when its job begins nor when it is over. So a mailbox (two queues in the server's own
TensorFlow runtime, reached at its own port) takes what the chief has to say:

    chief                                    worker, ps
    -----                                    ----------
    checks its port                          checks its port, starts its server, opens the mailbox
    claim -------------------------------->  "welcome", or "busy" with another chief
    (until all tasks have welcomed it)
    connects, trains                         serves, and looks whether the chief is still there
    at its end: "done" or "failed: ..." -->  waits for the chief's process to go; exit code 0 or 1

A worker that was killed and is started again serves at once: the chief finds it by itself. A server
whose chief dies, or never comes, ends with code 1.

    mailbox    messages to a server, and its answers
    roll_call  the chief's side of the start
    watch      is the chief still there? A clock and a state, no network
    server     what a worker or ps does
    ending     how the chief tells the others that it ends
"""

from __future__ import annotations

from tfdist.serving.ending import announce_end, install_end, leave_at_once
from tfdist.serving.roles import check_backup_workers, serve, take_role

__all__ = [
    "announce_end",
    "check_backup_workers",
    "install_end",
    "leave_at_once",
    "serve",
    "take_role",
]
