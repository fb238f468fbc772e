"""Benchmarks every codec's encode and decode on one thread and on two, compared with a read-only
pass and memcpy over the same tensor in the same run. Then compares the codecs sort and uniform with
plain LibTorch implementations of the same codecs.

Prints a table and writes the figures as JSON. Called by scripts/bench.sh codecs."""

import argparse
import json
import os
import statistics
import subprocess
import tempfile


# Plain implementations and the codecs they are compared with.
PLAIN = {"plain sort": ["sort:q=6,s=2,select=sampled", "sort:q=6,s=2,select=exact"], "plain uniform": ["uniform:bits=8"]}


def measure(program, arguments, seconds):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([program, f"--benchmark_min_time={seconds}", "--benchmark_out_format=json",
                        f"--benchmark_out={file.name}", *arguments], check=True, stdout=subprocess.DEVNULL)
        return json.load(file)["benchmarks"]


def compare_plain(program, seconds, rounds):
    """Measures sort, uniform and the plain operations in interleaved rounds. Prints and returns the medians."""
    tensors = {}  # tensor -> codec -> direction -> GB/s of each round; and "snr_db"
    for result in measure(program, [f"--benchmark_repetitions={rounds}", "--benchmark_enable_random_interleaving=true"], seconds):
        if result["run_type"] != "iteration":
            continue
        tensor, codec, direction = result["run_name"].split("/")[:3]
        row = tensors.setdefault(tensor, {}).setdefault(codec, {"encode": [], "decode": []})
        row[direction].append(result["bytes_per_second"] / 1e9)
        if "snr_db" in result:
            row["snr_db"] = result["snr_db"]
    print(f"\ncompared with plain LibTorch operations, one thread, GB/s, medians of {rounds} interleaved rounds")
    for tensor, rows in sorted(tensors.items()):
        print(f"\n{tensor:<34}{'encode':>8}{'/ plain':>9}{'decode':>8}{'/ plain':>9}{'SNR, dB':>9}")
        speed = lambda codec, direction: statistics.median(rows[codec][direction])
        for plain, ours in PLAIN.items():
            for codec in [plain, *ours]:
                cells = "".join(f"{speed(codec, way):>8.3f}{speed(codec, way) / speed(plain, way):>9.1f}" for way in ("encode", "decode"))
                print(f"{codec:<34}{cells}{rows[codec]['snr_db']:>9.2f}")
    return tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the comparison with plain operations")
    parser.add_argument("--plain-only", action="store_true", help="only the comparison with plain operations")
    parser.add_argument("--json", help="writes the figures to this file")
    parser.add_argument("specs", nargs="*", metavar="SPEC", help="a codec to measure in addition to the table's examples")
    options = parser.parse_args()
    load = os.getloadavg()[0]

    tensors = {}  # tensor -> spec, or "read" or "memcpy" -> measured values
    table = [] if options.plain_only else measure(f"{options.programs}/bench_codecs", options.specs, options.seconds)
    for result in table:
        tensor, what = result["name"].split("/", 1)
        spec, _, direction = what.partition("/")
        row = tensors.setdefault(tensor, {}).setdefault(spec, {})
        row[direction.removesuffix("/real_time") or "speed"] = result["bytes_per_second"] / 1e9
        for counter in ("ratio", "snr_db"):
            if counter in result:
                row[counter] = result[counter]

    print(f"GB/s of fp32 bytes; one thread: processor time, two threads: wall time; {len(os.sched_getaffinity(0))} cores, load {load:.2f} at the start")
    for tensor, rows in tensors.items():
        read, copy = rows.pop("read")["speed"], rows.pop("memcpy")["speed"]
        print(f"\n{tensor}: read-only pass {read:.1f}, memcpy {copy:.1f}")
        print(f"{'codec':<34}{'encode':>8}{'of read':>9}{'decode':>8}{'of memcpy':>11}{'2 threads: encode':>19}{'decode':>8}{'bytes':>8}{'SNR, dB':>9}")
        for spec, row in rows.items():
            snr = f"{row['snr_db']:.1f}" if "snr_db" in row else "-"
            print(f"{spec:<34}{row['encode']:>8.2f}{row['encode'] / read:>9.2f}{row['decode']:>8.2f}"
                  f"{row['decode'] / copy:>11.2f}{row['encode2']:>19.2f}{row['decode2']:>8.2f}{row['ratio']:>8.4f}{snr:>9}")
        rows["read"], rows["memcpy"] = {"speed": read}, {"speed": copy}
    plain = compare_plain(f"{options.programs}/bench_codecs_torch", options.seconds, options.rounds)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"gigabytes_per_second": tensors, "plain": plain, "load": load}, file, indent=2)


if __name__ == "__main__":
    main()
