/* A bare all-reduce over MPI: what the suite's collectives are held against.
 *
 *   mpirun -np N bench-all-reduce WARMUP REPEATS BYTES...
 *
 * Per size: float32 sums in place, WARMUP calls, a barrier, REPEATS calls timed one by one. Rank 0 prints one line per size,
 * "BYTES SECONDS": the median over the calls of the largest time over the ranks. The thread level is the one that PyTorch asks for.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(long bytes, int warmup, int repeats, int rank) {
    const int count = (int)(bytes / (long)sizeof(float));
    float *data = NULL;
    double *times = calloc((size_t)repeats, sizeof *times), *slowest = calloc((size_t)repeats, sizeof *slowest);
    if (times == NULL || slowest == NULL || posix_memalign((void **)&data, 64, (size_t)bytes) != 0) {
        fprintf(stderr, "no memory for %ld bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(data, 0, (size_t)bytes);
    for (int i = 0; i < warmup; i++) MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < repeats; i++) {
        const double start = now();
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        times[i] = now() - start;
    }
    MPI_Reduce(times, slowest, repeats, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(slowest, (size_t)repeats, sizeof *slowest, ascending);
        printf("%ld %.9f\n", bytes, (slowest[(repeats - 1) / 2] + slowest[repeats / 2]) / 2);
        fflush(stdout);
    }
    free(data);
    free(times);
    free(slowest);
}

int main(int argc, char **argv) {
    int provided, rank;
    if (argc < 4 || atoi(argv[1]) < 0 || atoi(argv[2]) < 1) {
        fprintf(stderr, "usage: %s WARMUP REPEATS BYTES...\n", argv[0]);
        return 2;
    }
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 3; i < argc; i++) measure(atol(argv[i]), atoi(argv[1]), atoi(argv[2]), rank);
    MPI_Finalize();
    return 0;
}
