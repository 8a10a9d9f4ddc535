"""`python -m koine`: what can be run without a program."""
import argparse
import sys

import koine


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m koine", description="Koine: a tensor compiler and deep-learning library.")
    parser.add_argument("--version", action="version", version=f"koine {koine.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="train a small net on handwritten digits", description="Trains a small net on handwritten "
                               "digits that come with the package, in a few seconds. KOINE_DEVICE says on what.")
    demo.add_argument("--epochs", type=_positive, default=14)
    demo.add_argument("--seed", type=int, default=7)
    demo.add_argument("--data", metavar="FILE", help="another digits.csv")
    demo.add_argument("--save", metavar="FILE", help="where the trained net goes, as safetensors")
    options = parser.parse_args()
    from koine.demo import train
    try:
        train(options.epochs, options.seed, options.data, options.save)
    except koine.Error as e:
        print(f"python -m koine demo: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
