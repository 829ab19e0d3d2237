"""The quick way to the answer of each template: a formula. `brute` has the slow way, under the same name."""

from __future__ import annotations

import math
from fractions import Fraction


def power_mod(a: int, b: int, m: int) -> int:
    return pow(a, b, m)


def recurrence(a: int, b: int, p: int, q: int, n: int) -> int:
    """x₁ = a, x₂ = b, xₖ = p·xₖ₋₁ + q·xₖ₋₂; the last three digits of xₙ, by powers of a matrix."""
    result: tuple[int, ...] = (1, 0, 0, 1)
    square: tuple[int, ...] = (p, q, 1, 0)
    exponent = n - 2
    while exponent:
        if exponent % 2:
            result = _times(result, square)
        square, exponent = _times(square, square), exponent // 2
    return (result[0] * b + result[1] * a) % 1000


def _times(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
    return (
        (x[0] * y[0] + x[1] * y[2]) % 1000,
        (x[0] * y[1] + x[1] * y[3]) % 1000,
        (x[2] * y[0] + x[3] * y[2]) % 1000,
        (x[2] * y[1] + x[3] * y[3]) % 1000,
    )


def count_multiples(n: int, a: int, b: int, c: int) -> int:
    """Multiples of a or b, but not of c, up to n: inclusion and exclusion."""
    either = n // a + n // b - n // math.lcm(a, b)
    return either - (n // math.lcm(a, c) + n // math.lcm(b, c) - n // math.lcm(a, b, c))


def lcm_pairs(n: int) -> int:
    """Ordered pairs with least common multiple n: (2e + 1) for each prime power."""
    count, prime = 1, 2
    while n > 1:
        exponent = 0
        while n % prime == 0:
            n, exponent = n // prime, exponent + 1
        count, prime = count * (2 * exponent + 1), prime + 1
    return count


def trailing_zeros(n: int, b: int) -> int:
    """Zeros at the end of n! in base b: Legendre's formula for each prime of b."""
    zeros, prime = [], 2
    while b > 1:
        exponent = 0
        while b % prime == 0:
            b, exponent = b // prime, exponent + 1
        if exponent:
            power, total = prime, 0
            while power <= n:
                power, total = power * prime, total + n // power
            zeros.append(total // exponent)
        prime += 1
    return min(zeros)


def lattice_paths(a: int, b: int, c: int, d: int) -> int:
    through = math.comb(c + d, c) * math.comb(a + b - c - d, a - c)
    return (math.comb(a + b, a) - through) % 1000


def spread_subsets(n: int, k: int, g: int) -> int:
    """Subsets of k numbers that lie at least g apart."""
    return math.comb(n - (k - 1) * (g - 1), k) % 1000


def cycle_colourings(n: int, k: int) -> int:
    """The chromatic polynomial of a cycle."""
    return (pow(k - 1, n, 1000) + (1 if n % 2 == 0 else -1) * (k - 1)) % 1000


def digit_sum(n: int, s: int) -> int:
    """Numbers from 1 to 10ⁿ − 1 with digit sum s > 0: inclusion and exclusion over digits above 9."""
    return sum(
        (-1) ** j * math.comb(n, j) * math.comb(s - 10 * j + n - 1, n - 1)
        for j in range(n + 1)
        if s - 10 * j >= 0
    )


def dice_sum(k: int, f: int, s: int) -> int:
    ways = sum(
        (-1) ** j * math.comb(k, j) * math.comb(s - f * j - 1, k - 1)
        for j in range(k + 1)
        if s - f * j - 1 >= 0
    )
    chance = Fraction(ways, f**k)
    return chance.numerator + chance.denominator


def root_powers(a: int, b: int, c: int, p: int) -> int:
    """Newton's sums for x³ − ax² + bx − c."""
    sums = [3, a, a * a - 2 * b]
    while len(sums) <= p:
        sums.append(a * sums[-1] - b * sums[-2] + c * sums[-3])
    return sums[p] % 1000


def triangles(p: int) -> int:
    """Alcuin's sequence: the nearest integer to p²/48 or (p + 3)²/48."""
    return ((p if p % 2 == 0 else p + 3) ** 2 + 24) // 48


def heron(a: int, b: int, c: int) -> int:
    return math.isqrt((a + b + c) * (b + c - a) * (a + c - b) * (a + b - c)) // 4


def disc_points(r: int) -> int:
    side = math.isqrt(r)
    return sum(2 * math.isqrt(r - x * x) + 1 for x in range(-side, side + 1))


def floor_sum(n: int, a: int, b: int) -> int:
    """Σ ⌊ak/b⌋ for k = 1 … n, by the steps of Euclid's algorithm."""
    return _floor_sum(n + 1, b, a, 0) % 1000


def _floor_sum(n: int, m: int, a: int, b: int) -> int:
    total = (a // m) * (n * (n - 1) // 2) + (b // m) * n
    a, b = a % m, b % m
    top = a * n + b
    return total if top < m else total + _floor_sum(top // m, a, m, top % m)


def fibonacci_mod(n: int, m: int) -> int:
    """Fast doubling."""
    a, b = 0, 1
    for bit in bin(n)[2:]:
        a, b = a * (2 * b - a) % m, (a * a + b * b) % m
        if bit == "1":
            a, b = b, (a + b) % m
    return a % m


def bounded_solutions(n: int, k: int, m: int) -> int:
    """Solutions of x₁ + … + xₖ = n with 0 ≤ xᵢ ≤ m."""
    total = 0
    for j in range(n // (m + 1) + 1):
        ways = math.comb(k, j) * math.comb(n - (m + 1) * j + k - 1, k - 1)
        total += ways if j % 2 == 0 else -ways
    return total % 1000


def remainders(a: int, p: int, b: int, q: int) -> int:
    """The Chinese remainder theorem."""
    return (a + p * ((b - a) * pow(p, -1, q) % q)) % (p * q)


def trinomial(n: int, k: int) -> int:
    """The coefficient of xᵏ in (1 + x + x²)ⁿ."""
    return (
        sum(
            math.comb(n, twos) * math.comb(n - twos, k - 2 * twos)
            for twos in range(k // 2 + 1)
            if k - 2 * twos <= n - twos
        )
        % 1000
    )


def square_divisors(a: int, b: int, c: int) -> int:
    """Divisors of 2ᵃ·3ᵇ·5ᶜ that are perfect squares or perfect cubes."""
    squares, cubes, both = (math.prod(exponent // step + 1 for exponent in (a, b, c)) for step in (2, 3, 6))
    return squares + cubes - both


def coprime_pairs(n: int) -> int:
    """Pairs 1 ≤ a < b ≤ n without a common divisor: the sum of Euler's φ."""
    phi = list(range(n + 1))
    for prime in range(2, n + 1):
        if phi[prime] == prime:
            for multiple in range(prime, n + 1, prime):
                phi[multiple] -= phi[multiple] // prime
    return sum(phi[2:]) % 1000


def product_pairs(n: int) -> int:
    """The sum of all products of two different numbers of 1 … n: half of (Σk)² − Σk²."""
    total = n * (n + 1) // 2
    return (total * total - n * (n + 1) * (2 * n + 1) // 6) // 2 % 1000
