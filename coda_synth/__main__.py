"""`python -m coda_synth`: the command line from a bare checkout."""

from coda_synth.agent.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
