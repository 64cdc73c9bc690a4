"""Lists the laws and cases that neither a test nor a reason answers yet.

`python -m tests.missing [law|case] [PREFIX …]`
"""

import sys

from tests.promises import CASES, LAWS, missing

PROMISED = {"law": LAWS, "case": CASES}


def main(*words: str) -> int:
    """Print what is missing; 1 where anything is."""
    marks = [word for word in words if word in PROMISED] or list(PROMISED)
    prefixes = tuple(word for word in words if word not in PROMISED) or ("",)
    count = 0
    for mark in marks:
        open_ids = {key: text for key, text in missing(mark, PROMISED[mark]).items() if key.startswith(prefixes)}
        count += len(open_ids)
        print(f"{mark}: {len(open_ids)} of {len(PROMISED[mark])} have neither a test nor a reason")
        for key, text in open_ids.items():
            print(f"  {key:24} {text}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
