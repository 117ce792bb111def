"""Simulates a group of distributed Connect workers in virtual time. A seed determines everything that happens.

`python -m support.herder_simulation --seed N --count M` runs the simulation with M consecutive seeds, starting with
seed N. Set PYTHONHASHSEED=0 and PYTHONPATH=tests.
"""
