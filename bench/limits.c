/* What the machine can do at most: sums of products per second, and bytes per second copied and
   read, in the cache and from memory. Prints one JSON object; the argument is the number of
   threads. Each figure is the best of several rounds. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WIDE 16
#define CHAINS 12
#define MOST 64

typedef float vector __attribute__((vector_size(4 * WIDE), aligned(64)));
enum kind { PRODUCTS, COPY, STREAM, READ };
struct part { enum kind kind; vector *to, *from; long count, repeats; float result; };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void products(struct part *p) {
    vector sum[CHAINS], factor, term;
    for (int i = 0; i < WIDE; i++) { factor[i] = 0.999f; term[i] = p->result + i; }
    for (int j = 0; j < CHAINS; j++) sum[j] = term * (float)j;
    for (long n = 0; n < p->count; n++)
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++) sum[j] = sum[j] * factor + term;
    for (int j = 0; j < CHAINS; j++) p->result += sum[j][j % WIDE];
}

static void copy(struct part *p) {
    for (long i = 0; i < p->count; i++) p->to[i] = p->from[i];
}

static void stream(struct part *p) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_nontemporal_store)
    for (long i = 0; i < p->count; i++) __builtin_nontemporal_store(p->from[i], p->to + i);
    return;
#endif
#endif
    memcpy(p->to, p->from, p->count * sizeof(vector)); /* which streams by itself when large */
}

static void reading(struct part *p) {
    vector sum[4];
    memset(sum, 0, sizeof sum);
    for (long i = 0; i + 4 <= p->count; i += 4)
        for (int j = 0; j < 4; j++) sum[j] += p->from[i + j];
    for (int j = 0; j < 4; j++) p->result += sum[j][j];
}

static void *run(void *argument) {
    static void (*const kinds[])(struct part *) = {products, copy, stream, reading};
    struct part *p = argument;
    for (long r = 0; r < p->repeats; r++) {
        kinds[p->kind](p);
        __asm__ volatile("" ::: "memory");
    }
    return 0;
}

/* The seconds of the fastest round of all threads together. */
static double fastest(enum kind kind, vector *to, vector *from, long count, long repeats,
                      int threads) {
    double best = 1e9;
    struct part parts[MOST];
    pthread_t ids[MOST];
    for (int round = 0; round < 7; round++) {
        double start = now();
        for (int t = 0; t < threads; t++) {
            long share = kind == PRODUCTS ? count : count / threads;
            parts[t] = (struct part){kind, to + t * share, from + t * share, share, repeats, 0};
            if (kind == PRODUCTS) parts[t].to = parts[t].from = 0;
            pthread_create(&ids[t], 0, run, &parts[t]);
        }
        for (int t = 0; t < threads; t++) pthread_join(ids[t], 0);
        double took = now() - start;
        if (took < best) best = took;
    }
    return best;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (threads < 1 || threads > MOST) return 2;
    long large = (64L << 20) / sizeof(vector), small = (2L << 20) / sizeof(vector);
    vector *to = aligned_alloc(64, large * sizeof(vector));
    vector *from = aligned_alloc(64, large * sizeof(vector));
    if (!to || !from) return 3;
    memset(to, 1, large * sizeof(vector));
    memset(from, 1, large * sizeof(vector));
    long steps = 20000000;
    double flops = 2.0 * WIDE * CHAINS * steps * threads;
    double peak = flops / fastest(PRODUCTS, 0, 0, steps, 1, threads);
    double moved = 2.0 * large * sizeof(vector), kept = 2.0 * small * sizeof(vector);
    double plain = moved / fastest(COPY, to, from, large, 1, threads);
    double streamed = moved / fastest(STREAM, to, from, large, 1, threads);
    double read = moved / 2 / fastest(READ, to, from, large, 1, threads);
    double cached = 100 * kept / fastest(COPY, to, from, small, 100, threads);
    printf("{\"flops\": %.4g, \"copy\": %.4g, \"read\": %.4g, \"cache\": %.4g}\n", peak,
           plain > streamed ? plain : streamed, read, cached);
    return 0;
}
