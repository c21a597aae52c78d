"""What script/capture masks: values planted into texts in the form in which programs print them.

The forms are those of nvidia-smi 550 and 580, lspci, GRUB, apt-cache policy and the kernel log, as tests/fixtures and
public reports have them; the values are made up.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.capture_command import masking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.capture_command.masking import Identities, Mask, homes_in

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
IDENTITIES = Identities(
    ("dgx-07", "dgx-07.ml.corp.net"),
    ("achim", "svc_train", "j.roe"),
    ("172.20.4.7", "fd00::4:7"),
    homes=("/srv/projects/vision-acme", "/data/home/achim"),
    system=("root", "daemon", "www-data", "postgres"),
)
# A text, and what of it must be gone.
PLANTED = {
    "XML of nvidia-smi": ("<serial>1654922003211</serial>", "1654922003211"),
    "its board": ("<chassis_serial_number>9J2K77</chassis_serial_number>", "9J2K77"),
    "text of nvidia-smi": ("    Serial Number                         : 1654922003211", "1654922003211"),
    "a GPU's id": ("GPU-5f3c9f2a-1111-2222-3333-444455556666", "5f3c9f2a"),
    "an instance's id": ("MIG-5f3c9f2a-1111-2222-3333-444455556666", "5f3c9f2a"),
    "platform id": ("    GPU PDI                               : 0x2c68cb3bc5db8a3e", "2c68cb3bc5db8a3e"),
    "lspci": ("\tCapabilities: [160 v1] Device Serial Number b8-3f-d2-ff-fe-be-2e-ac", "b8-3f-d2"),
    "a card's VPD": ("\t\t\t[SN] Serial number: MT2242600PFX", "MT2242600PFX"),
    "USB in the kernel log": ("usb 1-8: SerialNumber: 0011223344", "0011223344"),
    "a process in a table": (
        "|    0   N/A  N/A     4242      C   /home/achim/venv/bin/python train_secret.py      612MiB |",
        "train_secret",
    ),
    "in XML": ("<process_name>python3 train_secret.py</process_name>", "train_secret"),
    "in text": ("            Name                          : python3 train_secret.py", "train_secret"),
    "of an Xid": ("NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=train_secret, Ch 1", "train_secret"),
    "of a trace": ("CPU: 3 PID: 4242 Comm: train_secret Tainted: P OE 6.8.0-51-generic", "train_secret"),
    "of a fault": ("kernel: [ 12.5] train_secret[4242]: segfault at 0 ip 00007f", "train_secret"),
    "the host": ("2026-05-18T19:02:39+0000 dgx-07 kernel: NVRM: loading", "dgx-07"),
    "its whole name": ("Welcome to DGX-07.ml.corp.net", "corp.net"),
    "another host's URL": ("500 http://mirror.corp.net:8080/ubuntu noble/main amd64", "corp.net"),
    "a login in a URL": ("deb https://achim:hunter2@developer.download.nvidia.com/x /", "hunter2"),
    "a token in a URL": ("https://esm.ubuntu.com/x?sig=abc%2Fdef&st=1", "abc%2Fdef"),
    "a secret": ("linux /vmlinuz root=/dev/sda1 api_token=hunter2 quiet", "hunter2"),
    "GRUB's password": ("password_pbkdf2 boss grub.pbkdf2.sha512.10000.AA.BB", "grub.pbkdf2"),
    "a user": ("/opt/models of svc_train", "svc_train"),
    "a directory": ("PATH=/home/mallory/bin:/usr/bin", "mallory"),
    "a home below another folder": ("PATH=/data/home/jdoe/bin:/usr/bin", "jdoe"),
    "on a file server": ("exe=/nfs/users/jdoe/venv/bin/python3", "jdoe"),
    "exported": ("fs01:/export/home/jdoe on /home/jdoe type nfs4", "jdoe"),
    "one of several file systems": ("/home2/jdoe/.nv, /gpfs/home01/jdoe", "jdoe"),
    "by letters": ("/afs/user/j/jdoe and /home/jd/jdoe/x", "jdoe"),
    "a name of two letters": ("/home/jd/venv/bin", "jd"),
    "of a group": ("/staff/jdoe /data/people/jdoe /net/students/jdoe", "jdoe"),
    "by more letters": ("/users/j/jd/jdoe", "jdoe"),
    "a folder in a folder": ("/people/staff/jdoe", "jdoe"),
    "a home in a home": ("/users/jdoe/home/mroe", "jdoe"),
    "by domain": ("/home/corp.net/jdoe/x", "jdoe"),
    "the domain itself": ("/home/corp.net/jdoe/x", "corp.net"),
    "by the domain's short name": ("/home/CORP/jdoe", "CORP"),
    "with the domain": ("/home/jdoe@corp.net/.cache", "jdoe"),
    "a name with a dot": ("/home/j.roe/venv of j.roe", "j.roe"),
    "in a URL": ("file:///nfs/users/jdoe/wheels", "jdoe"),
    "a home of another name": ("/srv/projects/vision-acme/bin", "vision-acme"),
    "a user of a domain": (r"session of CORP\achim, CORP\\achim", "CORP"),
    "a user in capitals": ("ACHIM logged in", "ACHIM"),
    "mail": ("Signed by Achim <a.k@corp.net>", "a.k@corp.net"),
    "an address": ("ip=10.1.2.3::10.1.2.1:255.255.255.0", "10.1.2.3"),
    "the host's own in a list of versions": ("libx 172.20.4.7", "172.20.4.7"),
    "IPv6": ("nameserver 2001:db8:1::53", "2001:db8:1::53"),
    "a MAC": ("eth0: b8:3f:d2:be:2e:ac link", "b8:3f:d2:be:2e:ac"),
    "a private mirror, named twice": (
        " 500 http://mirror.acme.lan/ubuntu noble/main amd64 Packages\n     origin mirror.acme.lan",
        "acme",
    ),
    "the driver on a lost GPU": ("NVRM: GPU 0000:5e:00.0: GPU serial number is 1563220000000.", "1563220000000"),
    "its own board": ("NVRM: GPU is on Board 0320115050551.", "0320115050551"),
    "the fabric": ("        GPU Fabric GUID                   : 0x1a2b3c4d5e6f7788", "1a2b3c4d5e6f7788"),
    "a vendor's field": ("\t\t\t[V2] Vendor specific: MT2317XZ0ABC", "MT2317XZ0ABC"),
    "network boot": ("BOOTIF=01-3c-ec-ef-12-34-56 quiet", "3c-ec-ef"),
    "GRUB's plain password": ("password bootmaster hunter2", "hunter2"),
    "GRUB's password of a disk": ("cryptomount -u 0123abcd -p hunter2", "hunter2"),
    "GRUB's users": ('set superusers="bootmaster"', "bootmaster"),
    "an option": ("agent --token hunter2 --verbose", "hunter2"),
    "a header": ("Authorization: Bearer hunter2", "hunter2"),
    "a short name": ("ftp_pass=hunter2 psk=hunter2 WANDB_KEY=hunter2", "hunter2"),
    "a secret with spaces": ('password="my long hunter2"', "hunter2"),
    "a volume group": ("root=/dev/mapper/dgx--07--vg-root ro", "dgx--07"),
    "its other form": ("/dev/dgx-07_vg/root", "dgx-07"),
    "the builder of a module": ("NVRM version: 580.95.05  Release Build  (root@build-box)", "build-box"),
    "in a record of audit": ("audit: op=login addr=? hostname=node-secret res=success", "node-secret"),
    "a disk by network": ("iscsi: iqn.2004-10.com.acme:01:9f8e7d6c", "9f8e7d6c"),
    "another host": ("ip=10.1.2.3::10.1.2.1:255.0.0.0:node-secret:eth0:off", "node-secret"),
    "InfiniBand": ("mlx5_0: node guid b83f:d203:00be:2eac", "b83f:d203:00be:2eac"),
}
# What a plan, a check or a reader needs.
KEPT = (
    "GPU at 00000000:05:00.0, PCI:0000:dc:00, 10de:2335 (rev a1) Subsystem: 10de:18be",
    "libcudnn9-cuda-13 9.28.0.42-1 amd64",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3)",
    "    Cluster UUID                          : 00000000-0000-0000-0000-000000000000",
    "    Serial Number                         : N/A",
    "500 https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/  Packages",
    "500 http://archive.ubuntu.com/ubuntu noble/main amd64 Packages",
    "menuentry 'Ubuntu, with Linux 6.8.0-51-generic' --class ubuntu",
    "[   12.345678] nvidia-nvlink: Nvlink Core is being initialized, major device number 511 at 12:34:56",
    "ii nvidia-driver-570-server-open:amd64 570.148.08-0lambda0.22.04.1",
    "inet 127.0.0.1 and ::1",
    "500 https://linux.mellanox.com/public/repo/mlnx_ofed/24.10-1.1.4.0/ubuntu24.04/x86_64 ./ Packages",
    "ii libnvidia-compute-580:amd64 580.95.05-0ubuntu0.24.04.2",
    "/home/www-data /data/home/daemon/x /nfs/users/postgres root daemon www-data:x",
    "/usr/lib/systemd/user/x.service /run/user/1000/bus /usr/share/doc/users/guide /sys/fs/cgroup/users/a /etc/users/a",
    "/srv/projects/vision-acme2 and /srv/projects",
)


@pytest.mark.parametrize("name", PLANTED)
def test_what_tells_whose_host_it_is_is_gone(name: str) -> None:
    text, secret = PLANTED[name]
    assert secret in text
    masked = Mask(IDENTITIES).text(text, addresses=not name.endswith("versions"))
    assert secret.lower() not in masked.lower()
    assert masked != text


def test_each_expression_masks_what_no_other_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that none can go without a text above that shows it."""

    def shown() -> set[str]:
        masked = {name: Mask(IDENTITIES).text(text, addresses=False) for name, (text, _secret) in PLANTED.items()}
        return {name for name, (_text, secret) in PLANTED.items() if secret.lower() in masked[name].lower()}

    expressions, always = masking._NAMED, shown()
    unneeded = []
    for number, (_kind, pattern) in enumerate(expressions):
        monkeypatch.setattr(masking, "_NAMED", expressions[:number] + expressions[number + 1 :])
        if shown() == always:
            unneeded.append(pattern.pattern)
    assert unneeded == []


@pytest.mark.parametrize("text", KEPT)
def test_what_a_plan_needs_stays(text: str) -> None:
    assert Mask(IDENTITIES).text(text, addresses=False) == text


@pytest.mark.parametrize("name", ["nvidia-smi-550.163.01.txt", "nvidia-smi-535.261.03.txt"])
def test_of_a_genuine_transcript_only_ids_are_masked(name: str) -> None:
    text = (FIXTURES / "nvidia-smi" / name).read_text()
    mask = Mask(Identities())
    before, after = text.splitlines(), mask.text(text, addresses=False).splitlines()
    changed = [line for line, masked in zip(before, after, strict=True) if line != masked]
    assert changed
    assert [line for line in changed if "GPU-0000" not in line and "python" not in line and "train" not in line] == []


@pytest.mark.parametrize("name", ["ubuntu-22.04.cfg", "ubuntu-24.04.cfg", "debian-13.cfg"])
def test_of_a_boot_menu_only_ids_are_masked(name: str) -> None:
    text = (FIXTURES / "grub" / name).read_text()
    before, after = text.splitlines(), Mask(Identities()).text(text).splitlines()
    changed = [line for line, masked in zip(before, after, strict=True) if line != masked]
    assert [line for line in changed if "-" not in line.partition("UUID")[2] + line.partition("fs-uuid")[2]] == [
        line for line in changed if "gnulinux-" in line
    ]


def test_equal_values_have_equal_masks_and_others_have_others() -> None:
    mask = Mask()
    first, again, other = (mask.text(f"<serial>{number}</serial>") for number in ("111", "111", "222"))
    assert first == again != other
    assert mask.counts == {"serial": 2}


def test_a_masked_text_is_masked_once() -> None:
    mask = Mask(IDENTITIES)
    once = mask.text("\n".join(text for text, _secret in PLANTED.values()))
    assert Mask(IDENTITIES).text(once) == once


def test_data_is_masked_in_its_texts_and_keys() -> None:
    data = {"/home/achim/x": ["dgx-07", 7, None, {"a": "svc_train"}], "version": "9.28.0.42"}
    masked = Mask(IDENTITIES).data(data)
    assert not [word for word in ("achim", "dgx-07", "svc_train") if word in str(masked)]
    assert masked["version"] == "9.28.0.42"
    assert next(iter(masked.values()))[1:3] == [7, None]


def test_a_user_has_one_mask_in_paths_and_words() -> None:
    mask = Mask(IDENTITIES)
    masked = mask.text("/data/home/Achim/x /nfs/users/achim achim ACHIM")
    assert masked == "/data/home/USER-1/x /nfs/users/USER-1 USER-1 USER-1"
    assert mask.counts == {"user": 1}


def test_names_of_homes_are_those_to_ask_the_host_for() -> None:
    text = "/data/home/jdoe/venv /nfs/users/mroe:/home/CORP/sdoe /home/www-data /usr/lib/systemd/user/x /home/-rf/a"
    assert homes_in(text) == {"jdoe", "venv", "mroe", "CORP", "sdoe", "www-data"}


def test_thousands_of_users_take_no_longer_than_one() -> None:
    """A directory may list all of them, and each text is masked alone. As a ratio of times."""
    text = "/data/home/jdoe/venv/bin/python3 nvidia-580 s_user41 s\n" * 20

    def seconds(count: int) -> float:
        names = [f"s_user{number}" for number in range(count)]
        mask = Mask(Identities(users=tuple(names), homes=tuple(f"/srv/of/{name}-home" for name in names)))
        mask.text(text)
        start = time.process_time()
        for _repetition in range(50):
            assert "s_user41" not in mask.text(text)
        return time.process_time() - start

    assert seconds(20000) < 5 * seconds(50) + 0.2


@pytest.mark.parametrize("name", ["ubuntu", "nvidia", "gpu", "vm", "dev", "open", "h100", "noble", "max", "box", "ada"])
def test_a_name_that_is_a_word_of_others_masks_nothing(name: str) -> None:
    text = "ubuntu nvidia-gpu vm libcudnn9-dev-cuda-13 /dev/nvidia0 nvidia-open NVIDIA H100 80GB noble max x-box-y Ada"
    assert Mask(Identities((name,), (name,))).text(text) == text


@pytest.mark.parametrize(
    "line",
    ["a." * 20000, "aB3-" * 10000, "password" * 4000, "serial " * 5000, "/a" * 20000, "/home" * 8000],
    ids=range(6),
)
def test_a_long_line_takes_no_longer_than_several_short_ones(line: str) -> None:
    """As a ratio: patterns that begin anew at each word of a long line would take the square of its length."""
    mask, parts = Mask(), [line[start : start + 400] for start in range(0, len(line), 400)]
    start = time.process_time()
    for part in parts:
        mask.text(part)
    short = time.process_time() - start
    mask.text(line)
    assert time.process_time() - start - short < 20 * short + 0.2
