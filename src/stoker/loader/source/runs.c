/* Byte runs from anywhere in memory into a batch, and small files into memory. Compiled when Stoker is installed, if
   there is a C compiler; runs.py and files.py call it without the GIL, and do without it where there is none.

   Rows of a shuffled batch lie far apart, so that a copy begins with a miss of the cache and of the TLB. The processor
   cannot guess where the next row lies; we know, and say so some rows ahead. */

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

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

/* At most rooms[i] bytes of file i, one file after the other in out; got[i] is how many came, or minus an errno. The
   names follow each other, each with its zero. */
void stoker_files(const char *names, const int64_t *rooms, int64_t count, char *out, int64_t *got) {
    for (int64_t i = 0; i < count; i++) {
        int file = open(names, O_RDONLY | O_CLOEXEC);
        got[i] = file < 0 ? -errno : 0;
        while (file >= 0 && got[i] < rooms[i]) {
            ssize_t more = read(file, out + got[i], rooms[i] - got[i]);
            if (more < 0 && errno == EINTR)
                continue;
            if (more < 0)
                got[i] = -errno;
            if (more <= 0)
                break;
            got[i] += more;
        }
        if (file >= 0)
            close(file);
        names += strlen(names) + 1;
        out += rooms[i];
    }
}
