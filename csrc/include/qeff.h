/* The C API of the qeff CPU engine: open a compiled container, reserve cache blocks, run steps.
 *
 * A step takes tokens of any number of sequences, flat, and gives a row of logits for each token asked for. Cache
 * memory is cut into numbered blocks of `block_len` tokens that the caller hands out to sequences.
 *
 * Functions that can fail return 0, or one of the codes below with a sentence in `error` (cut to `error_size` bytes,
 * always terminated); where something must be given and is NULL, that is a bad request. One thread at a time may use a
 * session, and it need not be the same one each time; different sessions are independent of each other, and functions
 * without a session may be called at any time. A process that was forked has to open sessions of its own.
 */
#ifndef QEFF_H
#define QEFF_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define QEFF_EXPORT __attribute__((visibility("default")))
#else
#define QEFF_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define QEFF_API_VERSION 3

enum {
  QEFF_OK = 0,
  QEFF_BAD_CONTAINER = 1, /* the container is damaged or not for this release */
  QEFF_BAD_REQUEST = 2,   /* the arguments ask for something that does not exist */
  QEFF_NO_RESOURCE = 3,   /* no memory, or an instruction set that is not there */
  QEFF_INTERNAL = 4       /* a mistake of the library */
};

typedef struct qeff_session qeff_session;

typedef struct {
  int32_t num_threads; /* 0: one for each physical core */
  const char* isa;     /* NULL or "": the best for this processor, or what the variable QEFF_ISA names */
} qeff_options;

typedef struct {
  int64_t vocab_size;
  int64_t block_len;          /* tokens in a cache block */
  int64_t block_bytes;        /* memory of a cache block, all layers together */
  int64_t weights_bytes;      /* the mapped weights file */
  int64_t token_bytes;        /* memory of a step for each of its tokens */
  int32_t num_threads;
  char isa[16];
  char kv_format[16];
} qeff_info;

typedef struct {
  int64_t start, stop;   /* its tokens within the step; spans follow each other without gaps */
  const int32_t* blocks; /* its cache blocks, enough for all its tokens up to the last of this step */
  int64_t num_blocks;
} qeff_span;

/* How the token of a row is chosen: by temperature, then of the top_k likeliest, then of those likeliest whose
 * probabilities sum to top_p, then of those at least min_p times as likely as the likeliest. */
typedef struct {
  float temperature; /* 0: the largest logit, the first of equal ones; negative: no token but the logits are wanted */
  float top_p;       /* 1: off */
  float min_p;       /* 0: off */
  int32_t top_k;     /* 0: off */
  uint64_t key0, key1, index; /* its random number: that of numpy's Philox with this key and counter */
} qeff_choice;

typedef struct {
  const int64_t* tokens;
  const int64_t* positions; /* rise by one within a span; in a tree, by one from parent to child */
  int64_t num_tokens;
  const qeff_span* spans;
  int64_t num_spans;
  const int64_t* rows; /* the tokens whose logits are wanted */
  int64_t num_rows;
  const int32_t* parents; /* NULL, or for each token its parent within the step, -1 for none */
  const qeff_choice* choices; /* NULL: the logits of all rows are wanted; or for each row how its token is chosen */
} qeff_batch;

QEFF_EXPORT int32_t qeff_api_version(void);
/* Names of the instruction sets that this library and this processor have, best first, with commas. */
QEFF_EXPORT const char* qeff_isas(void);

/* Opens the container in `folder`; NULL with *code and a sentence when that fails. */
QEFF_EXPORT qeff_session* qeff_open(const char* folder, const qeff_options* options, int* code, char* error,
                                    size_t error_size);
QEFF_EXPORT void qeff_close(qeff_session* session);
QEFF_EXPORT void qeff_describe(const qeff_session* session, qeff_info* info);

/* Makes room for cache blocks 0 .. num_blocks - 1; what they held is lost. */
QEFF_EXPORT int qeff_reserve(qeff_session* session, int64_t num_blocks, char* error, size_t error_size);
/* Runs all tokens, keeps their keys and values, and writes what is wanted of the rows: to `logits` vocab_size floats
 * for each row that has no choice, in their order; to `chosen`, where there are choices, for each row its token, or -1
 * where it has no choice or its largest logit is not a finite number. */
QEFF_EXPORT int qeff_step(qeff_session* session, const qeff_batch* batch, float* logits, int64_t* chosen, char* error,
                          size_t error_size);
/* Copies whole blocks: pairs[2i] to pairs[2i + 1], in order. */
QEFF_EXPORT int qeff_copy_blocks(qeff_session* session, const int32_t* pairs, int64_t num_pairs, char* error,
                                 size_t error_size);
/* Copies what the cache holds of single tokens: row pairs[2i] to row pairs[2i + 1], in order. Row r of block b has the
 * number b * block_len + r. Token i of a span is written to row `first + i` of its sequence, where `first` is the
 * position of the span's first token, in a tree too: the branch that is kept has to be moved there. */
QEFF_EXPORT int qeff_copy_rows(qeff_session* session, const int64_t* pairs, int64_t num_pairs, char* error,
                               size_t error_size);

/* Times each phase of the steps that follow, or stops doing so. */
QEFF_EXPORT void qeff_profile(qeff_session* session, int32_t is_on);
/* The times since the last call as JSON: [[[op kind, op name], ...], nanoseconds] for each phase. Returns the bytes
 * needed, the terminator included; writes nothing when `size` is smaller. */
QEFF_EXPORT size_t qeff_take_profile(qeff_session* session, char* json, size_t size);

/* What this machine can do at most with this many threads: bytes read from memory a second, int8 products a second. */
QEFF_EXPORT int qeff_measure_limits(int32_t num_threads, double* bytes_per_second, double* int8_products_per_second);

#ifdef __cplusplus
}
#endif

#endif
