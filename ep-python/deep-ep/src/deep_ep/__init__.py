"""`epforge.deep_ep` by the name of the original, for programs that cannot be changed.

The modules are the same objects under both names, so that a class is one class.
"""

import importlib
import pkgutil
import sys

import epforge.deep_ep as facade

for found in pkgutil.walk_packages(facade.__path__, facade.__name__ + "."):
    sys.modules[__name__ + found.name.removeprefix(facade.__name__)] = importlib.import_module(found.name)
sys.modules[__name__] = facade
