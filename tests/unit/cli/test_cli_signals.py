"""The first signal asks, the second leaves, and afterwards everything is as before."""

import os
import signal

import pytest

from keylane.cli.signals import stopping
from keylane.demo.stop import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_makes_the_request_and_says_so(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    stop = StopRequest()
    before = signal.getsignal(number)
    with stopping(stop):
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.wait(5)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
    assert f"keylane: {number.name}: finishing what is in flight and committing" in capfd.readouterr().err
