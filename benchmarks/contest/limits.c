/* What the processor can do at most, printed as one JSON object:
 *   read_bytes_s     bytes that all threads together read from memory, one pass after the other
 *                    over a buffer that is larger than the caches;
 *   int8_mac_s       8-bit multiply-accumulates that all threads do on registers, with the widest
 *                    instruction for it that this file knows and the compiler was allowed to use;
 *   int8_instruction its name, "none" where there is none and int8_mac_s is 0.
 *
 * usage: limits THREADS MEGABYTES SECONDS
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#define NUM_SUMS 12 /* independent sums: more than an instruction takes cycles, times its ports */

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define INSTRUCTION "smmla"
#define MACS 32
typedef int32x4_t sums_t;
typedef int8x16_t bytes_t;
#define FILL(x) vdupq_n_s8(x)
#define ZERO vdupq_n_s32(0)
#define DOT(sum, a, b) vmmlaq_s32(sum, a, b)
#define PIN(x) __asm__ volatile("" : "+w"(x))
#elif defined(__ARM_FEATURE_DOTPROD)
#define INSTRUCTION "sdot"
#define MACS 16
typedef int32x4_t sums_t;
typedef int8x16_t bytes_t;
#define FILL(x) vdupq_n_s8(x)
#define ZERO vdupq_n_s32(0)
#define DOT(sum, a, b) vdotq_s32(sum, a, b)
#define PIN(x) __asm__ volatile("" : "+w"(x))
#elif defined(__AVX512VNNI__)
#define INSTRUCTION "vpdpbusd, 512 bits"
#define MACS 64
typedef __m512i sums_t;
typedef __m512i bytes_t;
#define FILL(x) _mm512_set1_epi8(x)
#define ZERO _mm512_setzero_si512()
#define DOT(sum, a, b) _mm512_dpbusd_epi32(sum, a, b)
#define PIN(x) __asm__ volatile("" : "+v"(x))
#elif defined(__AVX2__)
#define INSTRUCTION "vpmaddubsw"
#define MACS 32
typedef __m256i sums_t;
typedef __m256i bytes_t;
#define FILL(x) _mm256_set1_epi8(x)
#define ZERO _mm256_setzero_si256()
#define DOT(sum, a, b) \
    _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)))
#define PIN(x) __asm__ volatile("" : "+x"(x))
#endif

typedef struct {
    pthread_t thread;
    pthread_barrier_t* gate;
    const uint64_t* words;
    size_t num_words;
    double limit_s;
    double rate;
    uint64_t rest; /* of the arithmetic; kept so that none of it is left out */
} task_t;

static double clock_s(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* 64 bytes at a time into eight sums, with a prefetch some lines ahead. */
static uint64_t read_all(const uint64_t* words, size_t count) {
    uint64_t sums[8] = {0};
    for (size_t i = 0; i + 8 <= count; i += 8) {
        __builtin_prefetch(words + i + 320);
        for (int lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
    }
    for (int lane = 1; lane < 8; ++lane) sums[0] += sums[lane];
    return sums[0];
}

static void* run_read(void* argument) {
    task_t* task = argument;
    pthread_barrier_wait(task->gate);
    double begin = clock_s(), end = begin, bytes = 0;
    while (end - begin < task->limit_s) {
        task->rest += read_all(task->words, task->num_words);
        bytes += 8.0 * (double)task->num_words;
        end = clock_s();
    }
    task->rate = bytes / (end - begin);
    return NULL;
}

static void* run_dot(void* argument) {
    task_t* task = argument;
    pthread_barrier_wait(task->gate);
#ifdef INSTRUCTION
    bytes_t a = FILL(1), b = FILL(2);
    sums_t sums[NUM_SUMS];
    for (int i = 0; i < NUM_SUMS; ++i) sums[i] = ZERO;
    double begin = clock_s(), end = begin, macs = 0;
    while (end - begin < task->limit_s) {
        for (int turn = 0; turn < 10000; ++turn) {
#pragma GCC unroll 12
            for (int i = 0; i < NUM_SUMS; ++i) sums[i] = DOT(sums[i], a, b);
            PIN(a); /* the next turn cannot be foreseen */
            PIN(b);
        }
        macs += 10000.0 * NUM_SUMS * MACS;
        end = clock_s();
    }
    for (int i = 0; i < NUM_SUMS; ++i) task->rest += *(const uint32_t*)&sums[i];
    task->rate = macs / (end - begin);
#endif
    return NULL;
}

static double run_all(void* (*run)(void*), task_t* tasks, int num_threads) {
    pthread_barrier_t gate;
    pthread_barrier_init(&gate, NULL, (unsigned)num_threads);
    for (int i = 0; i < num_threads; ++i) {
        tasks[i].gate = &gate;
        tasks[i].rate = 0;
        if (pthread_create(&tasks[i].thread, NULL, run, &tasks[i])) exit(1);
    }
    double total = 0;
    for (int i = 0; i < num_threads; ++i) {
        pthread_join(tasks[i].thread, NULL);
        total += tasks[i].rate;
    }
    pthread_barrier_destroy(&gate);
    return total;
}

int main(int argc, char** argv) {
    int num_threads = argc == 4 ? atoi(argv[1]) : 0;
    size_t num_words = argc == 4 ? (size_t)atoi(argv[2]) * 125000 : 0;
    double limit_s = argc == 4 ? atof(argv[3]) : 0;
    if (num_threads < 1 || num_words < 8 || limit_s <= 0) {
        fprintf(stderr, "usage: limits THREADS MEGABYTES SECONDS\n");
        return 2;
    }
    uint64_t* words = malloc(num_words * sizeof *words);
    task_t* tasks = calloc((size_t)num_threads, sizeof *tasks);
    if (!words || !tasks) return 1;
    for (size_t i = 0; i < num_words; ++i) words[i] = i * 0x9e3779b97f4a7c15u;
    size_t part = num_words / (size_t)num_threads;
    for (int i = 0; i < num_threads; ++i) {
        tasks[i].words = words + part * (size_t)i;
        tasks[i].num_words = part;
        tasks[i].limit_s = limit_s;
    }
    double read_bytes_s = run_all(run_read, tasks, num_threads);
    double int8_mac_s = run_all(run_dot, tasks, num_threads);
    uint64_t rest = 0;
    for (int i = 0; i < num_threads; ++i) rest += tasks[i].rest;
    fprintf(stderr, "%llu\n", (unsigned long long)rest);
#ifndef INSTRUCTION
#define INSTRUCTION "none"
#endif
    printf("{\"read_bytes_s\": %.0f, \"int8_mac_s\": %.0f, \"int8_instruction\": \"%s\"}\n",
           read_bytes_s, int8_mac_s, INSTRUCTION);
    return 0;
}
