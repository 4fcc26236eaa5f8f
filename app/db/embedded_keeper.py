"""Runs one command for `embedded` and ends it when the process that asked for it is gone, however it went.

Standard input is a pipe whose other end only that process holds: it closes on exit, on SIGKILL and on exec, on every
Unix. (Linux's parent-death signal alone would not do: it belongs to the thread that forked, and setuid clears it.)
Started by path, isolated, so it imports nothing but the standard library.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>."""
PATIENCE_SECONDS = 30
"""How long a fast shutdown may take before an immediate one, which the next start has to recover from."""
NOT_RUN = 127
"""What a shell answers for a command that it cannot run."""


def main(uid: str, gid: str, command: list[str]) -> int:
    """Run `command` as this user and group ("-": as we are) and return its exit status as a shell would."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Signals to a whole group or service are for the process that asked; a handler, since SIG_IGN is inherited.
        signal.signal(number, lambda *_: None)
    as_we_are = uid == "-"
    libc = ctypes.CDLL(None)

    def die_with_the_keeper() -> None:
        if sys.platform == "linux":
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGINT)

    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            close_fds=False,  # the open data folder is passed on; all else is closed on exec
            preexec_fn=die_with_the_keeper,  # noqa: PLW1509 - this process has one thread yet; runs after the setuid
            user=None if as_we_are else int(uid),
            group=None if as_we_are else int(gid),
            extra_groups=None if as_we_are else [],
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return NOT_RUN
    threading.Thread(target=_end_with_standard_input, args=(child,), daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _end_with_standard_input(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1):
        pass
    child.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown; initdb removes what it made
    time.sleep(PATIENCE_SECONDS)
    child.send_signal(signal.SIGQUIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
