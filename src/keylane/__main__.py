"""`python -m keylane`: the same as the command `keylane`."""

import sys

from keylane.cli.main import main

sys.exit(main())
