"""The slow way to the answer of each template: enumeration, with nothing but the problem's own words.

Every function stands alone, imports included: the scripted expert sends its source to the sandbox.
"""

from __future__ import annotations


def power_mod(a: int, b: int, m: int) -> int:
    result = 1
    for _ in range(b):
        result = result * a % m
    return result


def recurrence(a: int, b: int, p: int, q: int, n: int) -> int:
    for _ in range(n - 1):
        a, b = b, (p * b + q * a) % 1000
    return a % 1000


def count_multiples(n: int, a: int, b: int, c: int) -> int:
    return sum((k % a == 0 or k % b == 0) and k % c != 0 for k in range(1, n + 1))


def lcm_pairs(n: int) -> int:
    import math

    divisors = [d for d in range(1, n + 1) if n % d == 0]
    return sum(math.lcm(x, y) == n for x in divisors for y in divisors)


def trailing_zeros(n: int, b: int) -> int:
    import math

    number, count = math.factorial(n), 0
    while number % b == 0:
        number, count = number // b, count + 1
    return count


def lattice_paths(a: int, b: int, c: int, d: int) -> int:
    ways = {(0, 0): 1}
    for x in range(a + 1):
        for y in range(b + 1):
            if (x, y) != (0, 0):
                ways[x, y] = ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)
            if (x, y) == (c, d):
                ways[x, y] = 0
    return ways[a, b] % 1000


def spread_subsets(n: int, k: int, g: int) -> int:
    from functools import cache

    @cache
    def count(start: int, left: int) -> int:
        if left == 0:
            return 1
        return sum(count(number + g, left - 1) for number in range(start, n + 1))

    return count(1, k) % 1000


def cycle_colourings(n: int, k: int) -> int:
    ways = [int(colour == 0) for colour in range(k)]
    for _ in range(n - 1):
        ways = [sum(ways) - ways[colour] for colour in range(k)]
    return k * sum(ways[1:]) % 1000


def digit_sum(n: int, s: int) -> int:
    return sum(sum(map(int, str(number))) == s for number in range(1, 10**n))


def dice_sum(k: int, f: int, s: int) -> int:
    from fractions import Fraction
    from itertools import product

    ways = sum(sum(roll) == s for roll in product(range(1, f + 1), repeat=k))
    chance = Fraction(ways, f**k)
    return chance.numerator + chance.denominator


def root_powers(a: int, b: int, c: int, p: int) -> int:
    roots = [x for x in range(-c - 1, c + 1) if x**3 - a * x**2 + b * x - c == 0]
    return sum(int(root**p) for root in roots) % 1000


def triangles(p: int) -> int:
    return sum(x + y > p - x - y >= y for x in range(1, p) for y in range(x, p))


def heron(a: int, b: int, c: int) -> int:
    from fractions import Fraction

    # Side c along the axis: x is where the height stands.
    x = Fraction(b * b + c * c - a * a, 2 * c)
    square = (b * b - x * x) * c * c / 4
    return next(area for area in range(10**6) if area * area >= square)


def disc_points(r: int) -> int:
    side = range(-r, r + 1)
    return sum(x * x + y * y <= r for x in side for y in side)


def floor_sum(n: int, a: int, b: int) -> int:
    return sum(a * k // b for k in range(1, n + 1)) % 1000


def fibonacci_mod(n: int, m: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, (a + b) % m
    return a % m


def bounded_solutions(n: int, k: int, m: int) -> int:
    ways = [1] + [0] * n
    for _ in range(k):
        ways = [sum(ways[total - x] for x in range(min(m, total) + 1)) for total in range(n + 1)]
    return ways[n] % 1000


def remainders(a: int, p: int, b: int, q: int) -> int:
    return next(x for x in range(p * q) if x % p == a and x % q == b)


def trinomial(n: int, k: int) -> int:
    row = [1]
    for _ in range(n):
        padded = [0, 0, *row, 0, 0]
        row = [sum(padded[i : i + 3]) for i in range(len(row) + 2)]
    return row[k] % 1000


def square_divisors(a: int, b: int, c: int) -> int:
    import math

    divisors = [2**x * 3**y * 5**z for x in range(a + 1) for y in range(b + 1) for z in range(c + 1)]
    return sum(math.isqrt(d) ** 2 == d or round(d ** (1 / 3)) ** 3 == d for d in divisors)


def coprime_pairs(n: int) -> int:
    import math

    return sum(math.gcd(x, y) == 1 for y in range(2, n + 1) for x in range(1, y)) % 1000


def product_pairs(n: int) -> int:
    return sum(x * y for x in range(1, n + 1) for y in range(x + 1, n + 1)) % 1000
