"""Wheel and sdist: built, checked, installed and used as users do. `sh tests/packages/run.sh`; see README.md."""
