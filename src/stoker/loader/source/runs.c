/* Byte runs from anywhere in memory into a batch. Compiled when Stoker is installed, if there is a C compiler; runs.py
   calls it without the GIL, and does without it where there is none.

   Rows of a shuffled batch lie far apart, so that a copy begins with a miss of the cache and of the TLB. The processor
   cannot guess where the next row lies; we know, and say so some rows ahead. */

#include <stdint.h>
#include <string.h>

enum { AHEAD = 4, LINE = 64, FIRST = 4 * LINE };

static void expect(const char *from, int64_t size) {
    for (int64_t at = 0; at < size && at < FIRST; at += LINE) /* the rest follows by itself */
        __builtin_prefetch(from + at);
}

/* Run i has sizes[i] bytes and begins at begins[i]; one comes after the other in out. */
void stoker_runs(char *out, const char *const *begins, const int64_t *sizes, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count)
            expect(begins[i + AHEAD], sizes[i + AHEAD]);
        memcpy(out, begins[i], sizes[i]);
        out += sizes[i];
    }
}

/* Part f of a row has sizes[f] bytes and begins offsets[f] bytes behind the row; it goes to row i of outs[f]. */
void stoker_parts(char *const *outs, const int64_t *offsets, const int64_t *sizes, int64_t parts,
                  const char *const *rows, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count)
            for (int64_t f = 0; f < parts; f++)
                expect(rows[i + AHEAD] + offsets[f], sizes[f]);
        for (int64_t f = 0; f < parts; f++)
            memcpy(outs[f] + i * sizes[f], rows[i] + offsets[f], sizes[f]);
    }
}
