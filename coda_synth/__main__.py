"""`python -m coda_synth`, for a bare checkout in which no command is installed."""

import sys

from coda_synth.agent.cli import main

sys.exit(main())
