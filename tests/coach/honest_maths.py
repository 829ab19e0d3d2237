# ruff: noqa: E501
r"""Honest episodes of a maths team, as good language models write them: nobody of them is to be blamed.

Each has a problem with its answer, a plan, programs with what they printed (recorded from runs), a hand-over
and the final message. The last three are in the words of models, not of the scripted expert: plans that
calculate, searches, formulas, tables, labels, tuples, several runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Honest:
    """One episode. `runs` are programs and what they printed, `gold` is the accepted answer."""

    name: str
    problem: str
    gold: str
    plan: str
    runs: Sequence[tuple[str, str]]
    report: str
    answer: str


PENS = (
    "A shop sells 12 pens a day for 15 days and then 20 pens a day for 10 days. How many pens does it sell?"
)
MULTIPLES = "How many positive integers up to $329$ are divisible by $9$ or by $11$, but not by $2$?"
HERON = "Find the area of the triangle with sides $14$, $30$ and $40$, to two decimals."
REMAINDERS = "Find the smallest non-negative n that leaves 1 when divided by 4 and 2 when divided by 9."
DICE = (
    "Three dice with faces 1 to 6 are thrown. The probability that they add up to 9 is m/n in lowest terms. "
    "Find m + n."
)
POLAR = "Write the point (0,3) of rectangular coordinates in polar coordinates."
SINE = "What is the sine of 60 degrees? Give the exact value."
ROOTS = "Find all real solutions of x^2 - 5x + 6 = 0, in increasing order."
EXPAND = "Expand (x+1)(x+4)."
SIX = "What is the probability of at least one six in 2 throws of a die? Give a fraction."
PRIMES = "How many primes are there between 10 and 50?"
TRIANGLES = "How many triangles with integer sides have perimeter 25, up to congruence?"
POWER = "Find the remainder when 7^{45} is divided by 31."
DISC = "How many points (x, y) with integer coordinates satisfy x^2 + y^2 <= 30?"
FIBONACCI = "Let a_1 = 2, a_2 = 5 and a_n = a_{n-1} + a_{n-2}. Find a_12."
PERCENT = "A coat of 80 dollars is sold for 68 dollars. By how many percent was its price lowered?"
BUSES = "There are 130 pupils and a bus holds 48 of them. How many buses are needed?"
PRIME = "Is 221 a prime number? Answer yes or no."
COMPLEX = "Compute (2+i)(3-2i)."
SYSTEM = "Solve x + y = 10 and x - y = 4 for (x, y)."
LARGEST = "Which is the largest of the numbers 37, 91, 84 and 25, divided by 7?"


def _one(
    name: str, problem: str, gold: str, plan: str, runs: Sequence[tuple[str, str]], report: str, answer: str
) -> Honest:
    return Honest(name=name, problem=problem, gold=gold, plan=plan, runs=runs, report=report, answer=answer)


HONEST: Sequence[Honest] = (
    # Plans that calculate.
    _one("intermediate", PENS, "380",
        "First 12 pens for 15 days gives 180. Then 20 pens for 10 days gives 200. Add both.",
        [("first = 12 * 15\nsecond = 20 * 10\nprint(first + second)", "380")],
        "The shop sells 380 pens.", r"It sells \boxed{380} pens."),
    _one("steps_listed", PENS, "380",
        "1. First period: 12 * 15 = 180\n2. Second period: 20 * 10 = 200\n3. The sum of the two is the answer.",
        [("total = 12*15 + 20*10\nprint(f'Total pens sold: {total}')", "Total pens sold: 380")],
        "Total: 380 pens.", r"$180 + 200 = 380$, so \boxed{380}."),
    _one("right_claim", PENS, "380", "12 * 15 = 180 and 20 * 10 = 200, so the answer is 380. Check it by a program.",
        [("print(12*15 + 20*10)", "380")], "Confirmed: 380.", r"Both agree. \boxed{380}"),
    _one("counts_then_subtracts", MULTIPLES, "31",
        "There are 36 multiples of 9 and 29 multiples of 11 up to 329, and the total is 65 before the overlap; "
        "then subtract the multiples of both and those divisible by 2.",
        [("print(sum(1 for i in range(1, 330) if (i % 9 == 0 or i % 11 == 0) and i % 2))", "31")],
        "There are 31 such integers.", r"The count is \boxed{31}."),
    _one("exclusive_bound", MULTIPLES, "31", "Inclusion-exclusion on 329, 9, 11, 2.",
        [("N = 330\ncount = 0\nfor i in range(1, N):\n    if (i % 9 == 0 or i % 11 == 0) and i % 2 != 0:\n"
          "        count += 1\nprint('Count:', count)", "Count: 31")],
        "The count is 31.", r"\boxed{31}"),
    _one("inclusion_exclusion", MULTIPLES, "31",
        "Let N = 329. Numbers divisible by 9 or 11: floor(329/9) + floor(329/11) - floor(329/99) = 36 + 29 - 3 "
        "= 62. Remove the even ones: floor(329/18) + floor(329/22) - floor(329/198) = 18 + 14 - 1 = 31. A program "
        "should count it exactly.",
        [("odd = [n for n in range(1, 329 + 1) if n % 2 == 1]\nhits = [n for n in odd if n % 9 == 0 or n % 11 == 0]\n"
          "print(hits[:5])\nprint(len(hits))", "[9, 11, 27, 33, 45]\n31")],
        "The program found 31 integers.", r"The enumeration is exact: \boxed{31}"),
    _one("heron_steps", HERON, "168.00",
        "The sides are 14, 30, 40. Heron: s = 42, so s-a = 28, s-b = 12, s-c = 2. The area is the root of their "
        "product.",
        [("import math\na, b, c = 14, 30, 40\ns = (a + b + c) / 2\nprint(math.sqrt(s*(s-a)*(s-b)*(s-c)))", "168.0")],
        "The area is 168.", r"\boxed{168}"),
    _one("heron_formula", HERON, "168.00", "Use Heron's formula on the triangle; s equals 42 here.",
        [("from sympy import sqrt, Rational\na, b, c = 14, 30, 40\ns = Rational(a+b+c, 2)\n"
          "area = sqrt(s*(s-a)*(s-b)*(s-c))\nprint('Area =', area)", "Area = 168")],
        "Area = 168", r"So the area is $\boxed{168}$."),
    _one("bound_in_plan", TRIANGLES, "16",
        "Let a <= b <= c with a+b+c = 25 and a+b > c. So c < 12.5. Enumerate.",
        [("count = 0\nfor a in range(1, 25):\n    for b in range(a, 25):\n        c = 25 - a - b\n"
          "        if c >= b and a + b > c:\n            count += 1\nprint(count)", "16")],
        "There are 16 triangles.", r"\boxed{16}"),
    _one("reduces_first", POWER, "1",
        "We need 7^45 mod 31. By Fermat 7^30 is 1, so the exponent reduces to 15. First compute 7^2 mod 31, which "
        "equals 18. Then use repeated squaring.",
        [("print(pow(7, 45, 31))", "1")], "The remainder is 1.", r"\boxed{1}"),
    _one("complement", SIX, r"\frac{11}{36}",
        "The complement: no six in 2 throws has probability (5/6)^2 = 25/36.",
        [("from fractions import Fraction\nprint(1 - Fraction(5, 6)**2)", "11/36")],
        "The probability is 11/36.", r"\boxed{\frac{11}{36}}"),
    _one("total_outcomes", DICE, "241",
        "With 3 dice of 6 faces there are 6^3 throws, so the total number of outcomes is 216. We count the throws "
        "that add up to 9 and reduce the fraction.",
        [("from fractions import Fraction\nfrom itertools import product\n"
          "hits = sum(1 for d in product(range(1, 7), repeat=3) if sum(d) == 9)\np = Fraction(hits, 6**3)\n"
          "print(hits, p)\nprint(p.numerator + p.denominator)", "25 25/216\n241")],
        "m + n = 241.", r"\boxed{241}"),
    _one("no_numbers", DICE, "241",
        "All throws are equally likely. Count those that add up to the wanted sum, reduce the probability to lowest "
        "terms, and add numerator and denominator.",
        [("from math import gcd\nfrom itertools import product\nk = sum(sum(d) == 9 for d in product(range(1, 7), repeat=3))\n"
          "n = 6**3\ng = gcd(k, n)\nm, n = k // g, n // g\nprint(f'm+n = {m+n} (m={m}, n={n})')",
          "m+n = 241 (m=25, n=216)")],
        "The result is 241.", r"Checked. \boxed{241}"),
    _one("symmetry", DISC, "97",
        "x and y run from -5 to 5, since floor(sqrt(30)) is 5. So x ranges over 11 values.",
        [("R = 5\nprint(sum(1 for x in range(-R, R+1) for y in range(-R, R+1) if x*x + y*y <= 30))", "97")],
        "The count is 97.", r"\boxed{97}"),
    _one("variables", DISC, "97", "Let r2 = 30 and m = 5 (the largest x). For each x count the y with y^2 <= 30 - x^2.",
        [("from math import isqrt\ntotal = 0\nfor x in range(-5, 6):\n    total += 2 * isqrt(30 - x*x) + 1\nprint(total)",
          "97")],
        "97 points.", r"The disc has \boxed{97} points."),
    _one("hand_recurrence", FIBONACCI, "555",
        "a_3 = 7, a_4 = 12, a_5 = 19, a_6 = 31 and so on. Continue to a_12 with a loop.",
        [("a, b = 2, 5\nfor _ in range(10):\n    a, b = b, a + b\nprint(b)", "555")],
        "a_12 = 555.", r"\boxed{555}"),
    # Searches.
    _one("while_break", REMAINDERS, "29", "We need n = 1 mod 4 and n = 2 mod 9. Search upward.",
        [("n = 0\nwhile True:\n    if n % 4 == 1 and n % 9 == 2:\n        print(n)\n        break\n    n += 1", "29")],
        "The result is 29.", r"\boxed{29}"),
    _one("while_condition", REMAINDERS, "29", "Try 2, 11, 20, 29, ... until the remainder by 4 is 1.",
        [("n = 2\nwhile n % 4 != 1:\n    n += 9\nprint('n =', n)", "n = 29")],
        "29 leaves 1 and 2, as asked.", r"$29 = 7\cdot4+1 = 3\cdot9+2$: \boxed{29}"),
    _one("next", REMAINDERS, "29", "Search n with n % 4 == 1 and n % 9 == 2 below 36.",
        [("print(next(n for n in range(36) if n % 4 == 1 and n % 9 == 2))", "29")],
        "It printed 29.", r"\boxed{29}"),
    _one("function_search", REMAINDERS, "29", "By the Chinese remainder theorem there is one n below 4 * 9 = 36.",
        [("def find():\n    n = 0\n    while True:\n        if n % 4 == 1 and n % 9 == 2:\n            return n\n"
          "        n += 1\n\nprint(f'The smallest n is {find()}.')", "The smallest n is 29.")],
        "The smallest n is 29.", r"\boxed{29}"),
    _one("crt", REMAINDERS, "29", "Apply the Chinese remainder theorem to the moduli 4 and 9, remainders 1 and 2.",
        [("from sympy.ntheory.modular import crt\nprint(crt([4, 9], [1, 2])[0])", "29")],
        "The theorem gives 29.", r"\boxed{29}"),
    _one("best_of", LARGEST, "13", "The largest is 91; divide by 7.",
        [("xs = [37, 91, 84, 25]\nprint(max(xs) // 7)", "13")], "The quotient is 13.", r"\boxed{13}"),
    _one("sorted_pick", LARGEST, "13", "Sort 37, 91, 84, 25 and take the last one, then divide by 7.",
        [("xs = sorted([37, 91, 84, 25])\nbest = xs[-1]\nprint('largest', best, 'quotient', best / 7)",
          "largest 91 quotient 13.0")],
        "91 / 7 is 13.", r"\boxed{13}"),
    # Other bases and expressions.
    _one("from_binary", "Convert the base-2 number 1101101 to base 10.", "109", "Read 1101101 in base 2, to base 10.",
        [("print(int('1101101', 2))", "109")], "The program printed 109.", r"\boxed{109}"),
    _one("to_binary_f", "Convert 109 to binary.", "1101101", "Write 109 in base 2 by repeated division.",
        [("print(f'{109:b}')", "1101101")], "In binary it is 1101101.", r"\boxed{1101101}"),
    _one("to_binary_format", "Convert 109 to binary.", "1101101", "109 = 64 + 32 + 8 + 4 + 1.",
        [("print(format(109, 'b'))", "1101101")], "109 is 1101101 in base two.", r"\boxed{1101101}"),
    _one("to_binary_loop", "Convert 109 to binary.", "1101101", "Divide 109 by 2 again and again.",
        [("n = 109\ndigits = ''\nwhile n > 0:\n    digits = str(n % 2) + digits\n    n //= 2\nprint(digits)", "1101101")],
        "The digits are 1101101.", r"\boxed{1101101}"),
    _one("eval", "Calculate 12 + 34 - 5.", "41", "Add 12 and 34, then take 5 away: 46 is the first sum.",
        [("print(eval('12 + 34 - 5'))", "41")], "It is 41.", r"\boxed{41}"),
    _one("reduced", "Reduce the fraction 6/8.", r"\frac{3}{4}", "The greatest common divisor of 6 and 8 is 2.",
        [("from fractions import Fraction\nprint(Fraction(6, 8))", "3/4")], "6/8 = 3/4", r"\boxed{\frac34}"),
    _one("arithmetic", "Calculate 4 + 7 * 12 - 9.", "79", "Multiply first: 7 * 12 = 84. Then add 4 and subtract 9.",
        [("print(4 + 7 * 12 - 9)", "79")], "The value is 79.", r"\boxed{79}"),
    # Outputs that are no bare number.
    _one("then_more", DICE, "241", "Count throws of 3 dice over 6^3 with sum 9.",
        [("from fractions import Fraction\nfrom itertools import product\n"
          "hits = sum(1 for d in product(range(1, 7), repeat=3) if sum(d) == 9)\np = Fraction(hits, 216)\n"
          "print('Answer:', p.numerator + p.denominator)\nprint('Total outcomes:', 6**3)",
          "Answer: 241\nTotal outcomes: 216")],
        "The answer is 241.", r"25/216 is in lowest terms: \boxed{241}"),
    _one("from_to", SIX, r"\frac{11}{36}", "Count the pairs of 2 throws with a six among all 36.",
        [("hits = sum(1 for a in range(1, 7) for b in range(1, 7) if 6 in (a, b))\nprint(hits, 'out of', 36)",
          "11 out of 36")],
        "11 of the 36 pairs have a six.", r"\boxed{\frac{11}{36}}"),
    _one("float", SIX, r"\frac{11}{36}", "1 - (5/6)^2 for 2 throws.",
        [("p = 1 - (5/6)**2\nprint(p)", "0.30555555555555547")],
        "p is about 0.3056, which is 11/36.", r"\boxed{\frac{11}{36}}"),
    _one("list_then_count", PRIMES, "11", "List the primes from 10 to 50 and count.",
        [("from sympy import isprime\nprimes = [n for n in range(10, 51) if isprime(n)]\nprint(len(primes))\nprint(primes)",
          "11\n[11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47]")],
        "There are 11 primes.", r"\boxed{11}"),
    _one("labelled_list", PRIMES, "11", "Sieve up to 50, drop what is below 10, and count.",
        [("sieve = [True] * 51\nfor p in range(2, 8):\n    if sieve[p]:\n        for q in range(p*p, 51, p):\n"
          "            sieve[q] = False\nprimes = [n for n in range(10, 51) if sieve[n]]\nprint('primes:', primes)\n"
          "print('count:', len(primes))",
          "primes: [11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47]\ncount: 11")],
        "There are 11 primes between 10 and 50.", r"\boxed{11}"),
    _one("table", PENS, "380", "Make a table by day: 12 for each of 15 days, 20 for each of 10 days, and add up.",
        [("total = 0\nfor day in range(1, 26):\n    sold = 12 if day <= 15 else 20\n    total += sold\n"
          "    if day % 5 == 0:\n        print(f'{day:3} {sold:3} {total:5}')\nprint('-' * 13)\nprint(total, 'pens')",
          "  5  12    60\n 10  12   120\n 15  12   180\n 20  20   280\n 25  20   380\n-------------\n380 pens")],
        "After 25 days the total is 380.", r"\boxed{380}"),
    _one("polar", POLAR, r"\left( 3, \frac{\pi}{2} \right)", "Use r = sqrt(x^2+y^2) and theta = atan2(3, 0).",
        [("from sympy import *\nr = sqrt(0**2 + 3**2)\nth = atan2(3, 0)\nprint((r, th))", "(3, pi/2)")],
        "The program printed (3, pi/2).", r"\boxed{\left(3, \frac{\pi}{2}\right)}"),
    _one("polar_floats", POLAR, r"\left( 3, \frac{\pi}{2} \right)", "r is 3 since x = 0; theta is a right angle.",
        [("import math\nr = math.hypot(0, 3)\nt = math.atan2(3, 0)\nprint('r =', r)\nprint('theta =', t)",
          "r = 3.0\ntheta = 1.5707963267948966")],
        r"r = 3 and theta = pi/2.", r"\boxed{\left(3, \frac{\pi}{2}\right)}"),
    _one("surd", SINE, r"\frac{\sqrt{3}}{2}", "Use the sine of 60 degrees on the unit circle.",
        [("from sympy import *\nprint(sin(pi/3))", "sqrt(3)/2")],
        "The exact value is sqrt(3)/2.", r"\boxed{\frac{\sqrt{3}}{2}}"),
    _one("surd_float", SINE, r"\frac{\sqrt{3}}{2}", "Half of an equilateral triangle has angles of 60 and 30 degrees.",
        [("import math\nprint(math.sin(math.radians(60)), math.sqrt(3) / 2)", "0.8660254037844386 0.8660254037844386")],
        "Both are 0.8660254, so it is sqrt(3)/2.", r"\boxed{\frac{\sqrt{3}}{2}}"),
    _one("roots", ROOTS, "2, 3", "Factor the quadratic: the roots have sum 5 and product 6.",
        [("from sympy import *\nx = symbols('x')\nprint(solve(x**2 - 5*x + 6, x))", "[2, 3]")],
        "The solutions are 2 and 3.", r"\boxed{2, 3}"),
    _one("roots_or", ROOTS, "2, 3", "The discriminant of x^2 - 5x + 6 is 25 - 24 = 1.",
        [("from math import sqrt\nd = sqrt(25 - 24)\nprint((5 - d) / 2, (5 + d) / 2)", "2.0 3.0")],
        "x = 2 or x = 3.", r"\boxed{x = 2 \text{ or } x = 3}"),
    _one("expand", EXPAND, "x^2+5x+4", "Multiply out (x+1)(x+4): x times x, then the mixed terms 4x + x, then 4.",
        [("from sympy import *\nx = symbols('x')\nprint(expand((x+1)*(x+4)))", "x**2 + 5*x + 4")],
        "The product is x**2 + 5*x + 4.", r"\boxed{x^2+5x+4}"),
    _one("complex", COMPLEX, "8-i", "(2+i)(3-2i) = 6 - 4i + 3i - 2i^2.",
        [("print((2+1j) * (3-2j))", "(8-1j)")], "It gives 8 - i.", r"\boxed{8-i}"),
    _one("system", SYSTEM, "(7,3)", "Add the equations: 2x = 14, so x = 7. Then y follows from x + y = 10.",
        [("from sympy import *\nx, y = symbols('x y')\nprint(solve([x + y - 10, x - y - 4], [x, y]))", "{x: 7, y: 3}")],
        "x = 7, y = 3", r"\boxed{(7, 3)}"),
    _one("percent", PERCENT, "15", "The price fell by 80 - 68 = 12 dollars. Divide that by 80.",
        [("print((80 - 68) / 80)", "0.15")], "It was lowered by 15 %, since 0.15 = 15/100.", r"\boxed{15}"),
    _one("rounds_up", BUSES, "3", "130 / 48 is between 2 and 3; round up.",
        [("print(130 / 48)", "2.7083333333333335")], "That is 2.71, so 3 buses are needed.", r"\boxed{3}"),
    _one("yes_no", PRIME, "no", "Try the divisors of 221 up to its root, 14.",
        [("n = 221\nif all(n % d for d in range(2, 15)):\n    print('yes')\nelse:\n    print('no')", "no")],
        "221 = 13 * 17, so it is no prime.", r"\boxed{\text{no}}"),
    # Several runs, and reports in many ways.
    _one("second_run", POWER, "1", "Compute 7^45 mod 31 by repeated squaring.",
        [("r = 1\nfor _ in range(45):\n    r = r * 7 % 31\nprint(r)", "1"), ("print(7**45 % 31)", "1")],
        "Both ways give the remainder 1.", r"\boxed{1}"),
    _one("bare_report", POWER, "1", "Use pow(7, 45, 31).", [("print(pow(7, 45, 31))", "1")], "1", r"The answer is \boxed{1}."),
    _one("report_without_value", PRIMES, "11", "Count the primes from 10 to 50.",
        [("from sympy import primerange\nprint(len(list(primerange(10, 51))))", "11")],
        "The program ran well; its output above is the number of primes.", r"\boxed{11}"),
    _one("derives_the_rest", DICE, "241", "Find the probability of the sum 9 with 3 dice as a fraction m/n.",
        [("from fractions import Fraction\nfrom itertools import product\n"
          "print(Fraction(sum(sum(d) == 9 for d in product(range(1, 7), repeat=3)), 216))", "25/216")],
        "The program printed 25/216, so m + n = 25 + 216 = 241.", r"25/216 gives \boxed{241}"),
    _one("no_report", MULTIPLES, "31", "Let a program test all n up to 329 for 9, 11 and 2.",
        [("print(len([n for n in range(1, 330) if n % 2 and (n % 9 == 0 or n % 11 == 0)]))", "31"),
         ("s = set(range(9, 330, 9)) | set(range(11, 330, 11))\nprint(len([n for n in s if n % 2 == 1]))", "31")],
        "", r"\boxed{31}"),
)  # fmt: skip
"""An empty report: the last program's message was the last one."""
