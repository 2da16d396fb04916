"""SSB or TPC-H on one GPU and on several: `several_gpus.py FOREBAY FOLDER [ROUNDS] [GPUS]`

The folder is that of `forebay bench tables --generate ssb` or `tpch`. Needs psycopg and duckdb (for the script that it is a
part of), and as many GPUs, 2 unless told, which are peers. A server on the first GPU answers all queries, then one on all.
Prints JSON lines as in `bench/record/`: the longest time of the kernels on a device, and the time that a client sees; of SSB
on two GPUs, the case `ssb-two-gpus` has the sums of both, and how many times faster two are. Exits with 1 if answers differ,
or if a query of SSB does not run on all GPUs.
"""

import pathlib
import statistics
import sys
import tempfile
import time

from sql_gpu import SSB, device_names, device_times, line, server_of, set_all, stop, timed, tpch_queries


TPCH = {f"tpch {number}": query for number, query in tpch_queries.QUERIES.items()}


def measure(forebay, folder, rounds, gpus, device):
    """Measures all queries on this many GPUs. Returns their answers, whether all ran on all GPUs, and the number of rows and
    the sums of times of SSB, by engine and metric."""
    answers, sums, are_on_all, of_ssb = {}, {}, True, {}
    with tempfile.TemporaryDirectory() as data:
        devices = ",".join(f"cuda:{gpu}" for gpu in range(gpus))
        # Column files would be written while queries are measured.
        server, client = server_of(forebay, folder, data, "--tables-gpu-disk-bytes-max", "0", devices=devices)
        is_ssb = (pathlib.Path(folder) / "lineorder.parquet").exists()
        fact, queries, name = ("lineorder", SSB, "ssb, 13 queries") if is_ssb else ("lineitem", TPCH, "tpch, 22 queries")
        set_all(client, "gpu = on", "compile = wait", f"strict = {'on' if is_ssb else 'off'}")
        count = client.execute(f"SELECT count(*) FROM {fact}").fetchone()[0]
        for case, query in queries.items():
            query = query.strip().rstrip(";")
            began = time.perf_counter()
            client.execute(query).fetchall()
            print(f"# {case}: first run {time.perf_counter() - began:.2f} s", file=sys.stderr, flush=True)
            times, answers[case] = timed(lambda: client.execute(query).fetchall(), rounds)
            plan = "\n".join(str(it) for row in client.execute("EXPLAIN ANALYZE " + query) for it in row)
            if gpus > 1 and f"on each of {gpus} GPUs" not in plan:
                print(f"# {case}: not on all GPUs\n{plan}", file=sys.stderr)
                are_on_all = not is_ssb
            on_device = device_times(client, query, rounds) if "ran there" in plan else []
            for metric, values in (("device_ms", on_device), ("client_ms", times)):
                if not values:
                    continue
                engine = f"forebay, {gpus} GPU{'s' * (gpus > 1)}"
                line(case, engine, metric, values, count, device)
                sums.setdefault((engine, metric), []).append((statistics.median(values), min(values), max(values)))
        for (engine, metric), of_queries in sums.items():
            totals = [sum(column) for column in zip(*of_queries)]
            line(f"{name}, total", engine, metric, totals, count, device)
            if is_ssb:
                of_ssb[engine, metric] = count, totals
        stop(server, client)
    return answers, are_on_all, of_ssb


def main(forebay, folder, rounds="9", gpus="2"):
    name = device_names()[0]
    device = f"{gpus} x {name}"
    on_one, _, sums_of_one = measure(forebay, folder, int(rounds), 1, name)
    on_all, are_on_all, sums_of_all = measure(forebay, folder, int(rounds), int(gpus), device)
    if gpus == "2":
        for ((engine, metric), (count, one)), (of_two, (_, two)) in zip(sums_of_one.items(), sums_of_all.items()):
            line("ssb-two-gpus", engine, metric, one, count, device)
            line("ssb-two-gpus", of_two, metric, two, count, device)
            line("ssb-two-gpus", of_two, metric.replace("_ms", "_speed_up"), [statistics.median(one) / statistics.median(two)],
                 count, device)
    wrong = [case for case in on_one if on_one[case] != on_all[case]]
    if wrong:
        print(f"# answers differ: {wrong}", file=sys.stderr)
    return int(bool(wrong) or not are_on_all)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
