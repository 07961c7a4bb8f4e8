"""What runs inside a container, one process a rank. Needs torch; mpi4py where the mpi backend is measured."""
