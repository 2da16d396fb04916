// Counts the lines of a file that match patterns, with Hyperscan or Vectorscan (libhs) on all cores.
//
// Reads one pattern per line from standard input, and writes one line for each: the count, and the milliseconds of the
// scan alone. A pattern is compiled once, before its first scan. The first line of output is the library's version.
#include <hs/hs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 256, PATTERN_BYTES_MAX = 4096 };

// A range of the file that ends at a line end, and the number of matching lines in it.
struct part {
    const char *begin, *end;
    const char *line_end; // of the last counted line
    hs_database_t *database;
    hs_scratch_t *scratch;
    unsigned long long count;
    pthread_t thread;
};

static void check(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

// Matches come in the order of their ends. Further matches in a counted line are ignored.
static int on_match(unsigned id, unsigned long long from, unsigned long long to, unsigned flags, void *context) {
    (void)id, (void)from, (void)flags;
    struct part *part = context;
    const char *last = part->begin + to - 1;
    if (part->line_end && last <= part->line_end) return 0;
    part->line_end = memchr(last, '\n', part->end - last);
    part->count++;
    return part->line_end == NULL;
}

// Scans a part, which must have at most 4 GiB.
static void *scan(void *context) {
    struct part *part = context;
    part->count = 0, part->line_end = NULL;
    hs_error_t error = hs_scan(part->database, part->begin, part->end - part->begin, 0, part->scratch, on_match, part);
    check(error == HS_SUCCESS || error == HS_SCAN_TERMINATED, "hs_scan failed");
    return NULL;
}

static char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    check(file && fseek(file, 0, SEEK_END) == 0, "cannot read the file");
    *bytes = ftell(file);
    rewind(file);
    char *text = malloc(*bytes);
    check(text && fread(text, 1, *bytes, file) == *bytes, "cannot read the file");
    fclose(file);
    return text;
}

static void split(struct part *parts, int count, const char *text, size_t bytes) {
    const char *begin = text, *end = text + bytes;
    for (int i = 0; i < count; i++) {
        const char *wanted = text + bytes * (i + 1) / count;
        const char *newline = wanted < end ? memchr(wanted, '\n', end - wanted) : NULL;
        parts[i].begin = begin, parts[i].end = newline ? newline + 1 : end;
        begin = parts[i].end;
    }
}

static void compile(struct part *parts, int count, const char *pattern) {
    if (parts[0].database) hs_free_database(parts[0].database);
    hs_database_t *database;
    hs_compile_error_t *error;
    hs_error_t compiled = hs_compile(pattern, HS_FLAG_MULTILINE, HS_MODE_BLOCK, NULL, &database, &error);
    check(compiled == HS_SUCCESS, compiled == HS_SUCCESS ? "" : error->message);
    for (int i = 0; i < count; i++) {
        parts[i].database = database;
        check(hs_alloc_scratch(database, &parts[i].scratch) == HS_SUCCESS, "no memory");
    }
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
    static struct part parts[THREADS_MAX];
    check(argc == 2, "usage: libhs FILE");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int count = cores < THREADS_MAX ? cores : THREADS_MAX;
    size_t bytes;
    const char *text = read_file(argv[1], &bytes);
    split(parts, count, text, bytes);
    printf("%s\n", hs_version());
    char pattern[PATTERN_BYTES_MAX], compiled[PATTERN_BYTES_MAX] = "";
    while (fflush(stdout), fgets(pattern, sizeof pattern, stdin)) {
        pattern[strcspn(pattern, "\n")] = 0;
        if (strcmp(pattern, compiled)) compile(parts, count, strcpy(compiled, pattern));
        double start = now_ms();
        for (int i = 0; i < count; i++) check(!pthread_create(&parts[i].thread, NULL, scan, &parts[i]), "no thread");
        unsigned long long matches = 0;
        for (int i = 0; i < count; i++) pthread_join(parts[i].thread, NULL), matches += parts[i].count;
        printf("%llu %.6f\n", matches, now_ms() - start);
    }
    return 0;
}
