"""Generated clients: generated, compiled and run. `sh tests/clients/run.sh` does all of it; see README.md."""
