"""Simulates a group of distributed Connect workers in virtual time; a seed determines the whole history.

`python -m support.herder_simulation --seed N --count M` runs seeds (with PYTHONHASHSEED=0 and PYTHONPATH=tests).
"""
