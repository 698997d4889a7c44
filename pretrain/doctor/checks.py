"""The checks, in the order in which they are made: what others rest on comes first."""

from pretrain.doctor import devices, inputs, machine, network, storage
from pretrain.doctor.examination import Check

CHECKS = (
    Check(
        "processes", "all processes have come; hosts, and how they are reached",
        machine.look_at_processes, machine.judge_processes, "start all ranks, with a launcher",
    ),
    Check(
        "versions", "Python, libraries, CUDA and this code are the same on every rank",
        machine.look_at_versions, machine.judge_versions, "mend the environment",
    ),
    Check(
        "clocks", "the hosts' clocks agree to a second",
        machine.look_at_clocks, machine.judge_clocks, "set the clocks",
    ),
    Check(
        "configuration", "the file can be read and is the same on every rank; the checks below need it",
        inputs.look_at_configuration, inputs.judge_configuration, "mend the file or the command line", is_decisive=True,
    ),
    Check(
        "number of processes", "the batch and the data's lanes can be cut over so many",
        machine.look_at_process_count, machine.judge_process_count, "start another number",
    ),
    Check(
        "devices", "every rank has a device of its own, of the same kind",
        devices.look_at_devices, devices.judge_devices,
        "let every rank see a GPU of its own (CUDA_VISIBLE_DEVICES, LOCAL_RANK), with a torch that the driver can run",
    ),
    Check(
        "attention", "the kernel that the devices get; one layer runs forward and backward",
        devices.look_at_attention, devices.judge_attention, "install a torch that is built for this device",
    ),
    Check(
        "processor cores", "enough for the threads and data workers",
        machine.look_at_cores, machine.judge_cores, "ask for more cores",
    ),
    Check(
        "open files", "the limit, against lanes x open_units",
        machine.look_at_open_files, machine.judge_open_files, "raise ulimit -Hn",
    ),
    Check(
        "shared memory", "size of /dev/shm",
        machine.look_at_shared_memory, machine.judge_shared_memory, "mount /dev/shm",
    ),
    Check(
        "tokenizer", "can be read, and is the same on every rank",
        inputs.look_at_tokenizer, inputs.judge_tokenizer, "copy the tokenizer's folder to every host",
    ),
    Check(
        "model", "the encoder fits the tokenizer and start_from; its size",
        inputs.look_at_model, inputs.judge_model, "mend the keys of encoder, tokenizer and start_from",
    ),
    Check(
        "memory", "weights, gradients and moments fit into each rank's device",
        devices.look_at_memory, devices.judge_memory, "free the device's memory",
    ),
    Check(
        "all-reduce", "sums over all ranks are right; bytes a second",
        network.look_at_all_reduce, network.judge_all_reduce,
        "let the hosts reach each other on all ports, and name the interface in NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME",
    ),
    Check(
        "run folder", "every rank can create, flush, rename, lock, read and delete there; nothing is left",
        storage.look_at_run_folder, storage.judge_run_folder, "choose another run_dir",
    ),
    Check(
        "history", "the run folder is new, or this run's own",
        storage.look_at_history, storage.judge_history, "choose another run_dir",
    ),
    Check(
        "disk space", "room for the checkpoints that the run will keep",
        storage.look_at_disk, storage.judge_disk, "make room",
    ),
    Check(
        "sources", "the first record of each can be read; the files are the same on every rank",
        inputs.look_at_sources, inputs.judge_sources, "mend data.sources, or copy the files to every host",
    ),
    Check(
        "token cache", "data.cache is complete and made of these sources",
        inputs.look_at_cache, inputs.judge_cache, "write it again, or copy it to every host",
    ),
    Check(
        "text and tokenizer", "few unknown tokens in a sample of each source",
        inputs.look_at_fit, inputs.judge_fit, "see 'sources' and 'tokenizer'",
    ),
)  # fmt: skip
