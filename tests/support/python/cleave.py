"""The package under its former name, for cases that were written before it was renamed."""
import sys

import cleave_split

sys.modules[__name__] = cleave_split
