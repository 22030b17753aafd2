"""`python -m coolsd_trt.tools.cli`."""

from . import main

main()
