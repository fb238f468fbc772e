"""Every codec's encode and decode on one thread, beside a read-only pass and memcpy over the same tensor in the same run.

Prints a table and writes the figures as JSON. Called by scripts/bench.sh codecs."""

import argparse
import json
import os
import subprocess
import tempfile


def measure(program, specs, seconds):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([program, f"--benchmark_min_time={seconds}", "--benchmark_out_format=json",
                        f"--benchmark_out={file.name}", *specs], check=True, stdout=subprocess.DEVNULL)
        return json.load(file)["benchmarks"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="build/release/bin")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json", help="where the figures go")
    parser.add_argument("specs", nargs="*", metavar="SPEC", help="measured beside the table's examples")
    options = parser.parse_args()
    load = os.getloadavg()[0]

    tensors = {}  # tensor -> spec, or "read" or "memcpy" -> what was measured
    for result in measure(f"{options.programs}/bench_codecs", options.specs, options.seconds):
        tensor, what = result["name"].split("/", 1)
        spec, _, direction = what.partition("/")
        row = tensors.setdefault(tensor, {}).setdefault(spec, {})
        row[direction or "speed"] = result["bytes_per_second"] / 1e9
        for counter in ("ratio", "snr_db"):
            if counter in result:
                row[counter] = result[counter]

    print(f"one thread, GB/s of fp32 bytes by processor time, {len(os.sched_getaffinity(0))} cores, load {load:.2f} at the start")
    for tensor, rows in tensors.items():
        read, copy = rows.pop("read")["speed"], rows.pop("memcpy")["speed"]
        print(f"\n{tensor}: read-only pass {read:.1f}, memcpy {copy:.1f}")
        print(f"{'codec':<34}{'encode':>8}{'of read':>9}{'decode':>8}{'of memcpy':>11}{'bytes':>8}{'SNR, dB':>9}")
        for spec, row in rows.items():
            snr = f"{row['snr_db']:.1f}" if "snr_db" in row else "-"
            print(f"{spec:<34}{row['encode']:>8.2f}{row['encode'] / read:>9.2f}{row['decode']:>8.2f}"
                  f"{row['decode'] / copy:>11.2f}{row['ratio']:>8.4f}{snr:>9}")
        rows["read"], rows["memcpy"] = {"speed": read}, {"speed": copy}
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"gigabytes_per_second": tensors, "load": load}, file, indent=2)


if __name__ == "__main__":
    main()
