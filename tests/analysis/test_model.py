from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import least_squares

from suite.analysis.model import fit, rounds

ALPHA, BETA = 400e-6, 80e6  # seconds; bytes per second
SIZES = tuple(1 << k for k in range(10, 29))  # 1 KiB … 256 MiB


def sweep(launches: int, noise: float, seed: int, launch_noise: float = 0.0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    clean = ALPHA + np.array(SIZES) / BETA
    common = np.exp(rng.normal(0, launch_noise, (launches, 1)))
    return np.asarray(clean * common * np.exp(rng.normal(0, noise, (launches, len(SIZES)))))


def test_clean_times_give_alpha_and_beta_exactly() -> None:
    model = fit("all_reduce", 4, SIZES, sweep(1, 0.0, 0))
    assert model is not None
    assert model.alpha == pytest.approx(ALPHA, rel=1e-6)
    assert model.beta == pytest.approx(BETA, rel=1e-6)
    assert model.worst_misfit < 1e-6
    assert (model.min_bytes, model.max_bytes, model.world_size) == (1 << 10, 1 << 28, 4)
    np.testing.assert_allclose(model.seconds(np.array([0, 8_000_000.0])), [ALPHA, ALPHA + 0.1])


@pytest.mark.parametrize("noise", [0.05, 0.10])
def test_alpha_and_beta_are_recovered_within_five_percent_from_noisy_sweeps(noise: float) -> None:
    for seed in range(20):
        model = fit("all_reduce", 4, SIZES, sweep(8, noise, seed))
        assert model is not None
        assert model.alpha == pytest.approx(ALPHA, rel=0.05)
        assert model.beta == pytest.approx(BETA, rel=0.05)


@pytest.mark.parametrize(("noise", "launch_noise"), [(0.10, 0.0), (0.03, 0.08)])
def test_the_intervals_hold_the_truth_as_often_as_they_say(noise: float, launch_noise: float) -> None:
    held = np.zeros(2)
    for seed in range(200):
        model = fit("all_reduce", 4, SIZES, sweep(6, noise, seed, launch_noise))
        assert model is not None
        assert model.alpha_interval is not None
        assert model.beta_interval is not None
        held += (model.alpha_interval.contains(ALPHA), model.beta_interval.contains(BETA))
        assert model.alpha_interval.high / model.alpha_interval.low < 1.7
    assert (held / 200 >= 0.88).all()


def test_a_backend_that_changes_its_algorithm_is_said_to_fit_poorly() -> None:
    times = sweep(4, 0.01, 1)
    times[:, 9:13] *= 2.5
    model = fit("all_reduce", 4, SIZES, times)
    assert model is not None
    assert model.poor
    assert SIZES[9] <= model.worst_bytes <= SIZES[12]
    straight = fit("all_reduce", 4, SIZES, sweep(4, 0.01, 1))
    assert straight is not None
    assert not straight.poor


def test_sizes_that_were_not_measured_are_left_out() -> None:
    times = sweep(5, 0.02, 2)
    times[:, -4:] = np.nan  # a cap for small machines
    times[2, 3] = np.nan  # one launch lost one size
    model = fit("all_reduce", 4, SIZES, times)
    assert model is not None
    assert model.max_bytes == SIZES[-5]
    assert model.beta == pytest.approx(BETA, rel=0.05)


def test_fewer_than_three_sizes_give_no_model() -> None:
    assert fit("all_reduce", 4, SIZES[:2], sweep(5, 0.0, 0)[:, :2]) is None
    assert fit("all_reduce", 4, SIZES, np.full((2, len(SIZES)), np.nan)) is None


def test_large_messages_alone_say_nothing_certain_about_alpha() -> None:
    model = fit("all_reduce", 4, SIZES[-5:], sweep(6, 0.05, 3)[:, -5:])
    assert model is not None
    assert model.beta == pytest.approx(BETA, rel=0.10)
    assert model.alpha_interval is None or model.alpha_interval.high / model.alpha_interval.low > 100


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="match"):
        fit("all_reduce", 4, SIZES, np.ones((2, 3)))
    with pytest.raises(ValueError, match="positive"):
        fit("all_reduce", 4, SIZES, np.zeros((2, len(SIZES))))


def test_more_ranks_cost_a_ring_more_rounds_and_hardly_more_bytes_per_link() -> None:
    model = fit("all_reduce", 4, SIZES, sweep(3, 0.01, 0))
    assert model is not None
    more = model.at_world_size(64)
    assert more.alpha == pytest.approx(model.alpha * 126 / 6)
    assert model.beta / more.beta == pytest.approx((2 * 63 / 64) / 1.5)
    assert (more.world_size, more.measured_world_size) == (64, 4)
    assert more.alpha_interval is not None
    assert more.alpha_interval.contains(more.alpha)
    there_and_back = more.at_world_size(4)
    assert there_and_back.beta == pytest.approx(model.beta)


def test_rounds_of_the_collectives() -> None:
    assert [rounds(c, 8) for c in ("all_reduce", "all_gather", "broadcast", "send_recv")] == [14, 7, 3, 1]


def test_one_rank_is_no_basis_and_no_target() -> None:
    alone = fit("all_reduce", 1, SIZES, sweep(3, 0.01, 0))
    four = fit("all_reduce", 4, SIZES, sweep(3, 0.01, 0))
    assert alone is not None
    assert four is not None
    with pytest.raises(ValueError, match="one rank"):
        alone.at_world_size(4)
    with pytest.raises(ValueError, match="moves nothing"):
        four.at_world_size(1)


@pytest.mark.parametrize("seed", range(8))
def test_the_fit_is_the_least_squares_that_scipy_finds(seed: int) -> None:
    generator = np.random.default_rng(seed)
    sizes = np.array([1 << k for k in range(10, 26, 3)])
    true = np.exp(generator.uniform(-11, -6)) + sizes / np.exp(generator.uniform(17, 23))
    seconds = true * np.exp(generator.normal(0, 0.3, sizes.size))

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.logaddexp(x[0], x[1] + np.log(sizes)) - np.log(seconds))

    starts = [(float(np.log(seconds.min())), float(np.log(seconds / sizes).min())), (-8.0, -20.0), (-4.0, -26.0)]
    expected = min((least_squares(residuals, start, xtol=1e-14, ftol=1e-14) for start in starts), key=lambda r: r.cost)
    model = fit("all_reduce", 4, sizes.tolist(), seconds[None, :])
    assert model is not None
    found = residuals(np.array([np.log(model.alpha), -np.log(model.beta)]))
    assert 0.5 * float(found @ found) <= expected.cost * (1 + 1e-9)
    assert model.beta == pytest.approx(float(np.exp(-expected.x[1])), rel=1e-4)
