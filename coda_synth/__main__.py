"""The command, installed or as `python -m coda_synth` from a bare checkout."""

import sys


def main() -> int:
    """The command line's exit code; a Ctrl-C while it is still being loaded ends it as quietly as a later one."""
    try:
        from coda_synth.agent.cli import main as command

        return command()
    except KeyboardInterrupt:
        sys.stderr.write("coda-synth: interrupted\n")
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
