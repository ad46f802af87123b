# SPDX-License-Identifier: Apache-2.0
"""only_torch.py PREFIX: a user's script after `pip install` into the environment at PREFIX. Imports only torch."""

import sys

import torch


def main(prefix: str) -> None:
    assert "linfuse" not in sys.modules
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.GELU(), torch.nn.Softmax(dim=1)).eval()
    fast = torch.compile(model, backend="linfuse")
    with torch.no_grad():
        for batch in (5, 1, 8, 8, 8, 8):
            x = torch.rand(batch, 64)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-6)

    linfuse = sys.modules["linfuse"]  # PyTorch found it
    assert linfuse.__file__.startswith(prefix), linfuse.__file__
    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1] for line in maps if "liblinfuse" in line or "libjansson" in line}
    assert all(path.startswith(prefix) for path in loaded), loaded
    assert {"liblinfuse.so", "liblinfuse_shortcut.so"} <= {path.rsplit("/", 1)[-1] for path in loaded}, loaded
    stats = linfuse.stats()
    assert stats.fused_calls == 6 and not stats.fallbacks, stats
    print("fine")


if __name__ == "__main__":
    main(sys.argv[1])
