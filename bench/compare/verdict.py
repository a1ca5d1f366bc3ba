"""What a sample is good for. Only `measured` ones are among the figures of what was asked for.

- measured: every tensor is right, and the bytes came as asked for
- fallback: the tensors are right, and the bytes came otherwise
- unverified: the tensors are right, and nobody says how the bytes came
- wrong: a tensor differs from the files, is missing, or is one too many
- failed: an error, no answer in time, or files that were not in the state of the page cache
"""

# Programs and libraries that a process reads from the disk while it loads: no weights.
PROGRAM = 64 << 20

MEASURED, FALLBACK, UNVERIFIED, WRONG, FAILED = STATUSES = "measured", "fallback", "unverified", "wrong", "failed"


def judge(sample, way, device, reference):
    """(status, why) of what a process answered. `reference` has the label of each tensor."""
    if "error" in sample:
        return FAILED, sample["error"]
    for number, digests in enumerate(sample["digests"]):
        if difference := differs(digests, reference):
            return WRONG, f"{difference} (call {sample['digests_of'][number] + 1})"
    asks = "host" if way.asks and device == "cpu" else way.asks
    for call in sample["calls"]:
        cached, state = call["cached"], sample["state"]
        if (state == "cold" and cached > 0) or (state == "warm" and cached < 1):
            return FAILED, f"the files were to be {state}, and {cached:.2%} of them was in the page cache"
        if call["took"] is None:
            return UNVERIFIED, "it does not say which way it took"
        if asks and call["took"] != asks:
            return FALLBACK, f"asked for {asks}, took {call['took']}"
        share = call["disk_bytes"] / sample["bytes"]
        if state == "warm" and way.reads == "cache" and call["disk_bytes"] > PROGRAM + sample["bytes"] // 100:
            return FALLBACK, f"{share:.0%} of the bytes came from the disk, and all were in the page cache"
        if state == "warm" and way.reads == "direct" and share < 0.9:
            return FALLBACK, f"{share:.0%} of the bytes came from the disk, and it was to read past the page cache"
        if state == "cold" and share < 0.9:
            return UNVERIFIED, f"the kernel counts {share:.0%} of the bytes as read from the disk"
    return MEASURED, ""


def differs(digests, reference):
    """What is wrong with the tensors; empty if nothing is."""
    if missing := reference.keys() - digests.keys():
        return f"{len(missing)} tensors are missing, such as {min(missing)}"
    if more := digests.keys() - reference.keys():
        return f"{len(more)} tensors are not in the files, such as {min(more)}"
    if other := [name for name, digest in digests.items() if digest != reference[name]]:
        name = min(other)
        return f"{len(other)} tensors differ from the files, such as {name}: {digests[name]} and not {reference[name]}"
    return ""
