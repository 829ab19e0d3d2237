r"""(gold, message, right?), by what is tricky about it. A message without a box is the content of one."""

from __future__ import annotations

from typing import Any

Case = tuple[Any, str, bool]

CASES: dict[str, list[Case]] = {
    "leading zeros": [
        ("7", "007", True), ("007", "7", True), ("045", "45", True), ("045", "450", False),
        ("000", "0", True), (7, "07", True), ("007", "8", False),
    ],
    "golds of other types": [
        (142.0, "142", True), (142.0, "142.0", True), (-4.0, "-4", True), (-4.0, "4", False),
        (0.25, r"\frac14", True), (17, "17", True), ([17, 18], "18", True), ([17, 18], "19", False),
        (["x+1"], "1+x", True), ([], "1", False), (float("nan"), "nan", False), (True, "1", False),
        (None, "1", False), (0.1, r"\frac{1}{10}", True),
    ],
    "several golds": [
        ("104 or 105 (both were accepted)", "104", True), ("104 or 105 (both were accepted)", "105", True),
        ("104 or 105 (both were accepted)", "106", False), ("104 or 105", "104, 105", False),
        ("3 or 4 or 5", "5", True),
    ],
    "ways to write a number": [
        ("1024", "1,024", True), ("1024", "1{,}024", True), ("1024", r"1\,024", True),
        ("1024", "1 024", True), ("1024", "2^{10}", True), ("1024", "2^{10} ", True),
        ("1024", "1.024e3", True), ("1024", r"1.024\times10^3", True), ("1024", "1024.", True),
        ("1024", "+1024", True), ("1024", "1024.000", True), ("1024", "１０２４", True),
        ("1024", "1,0240", False), ("1024", "10,24", False), ("-5", "−5", True), ("0.25", ".25", True),
        ("24", "4!", True), ("35", r"\binom{7}{3}", True), ("13", r"\sqrt{169}", True),
        ("12", "(12)", True), ("12", "{12}", True), ("12", r"\left(12\right)", True), ("8", "2³", True),
        ("1.5", "1½", True), ("12", r"\displaystyle 12", True), ("12", r"\mathbf{12}", True),
        ("12", "$12$", True), ("12", "12.0000001", False), ("0.3333", r"\frac13", False),
    ],
    "fractions": [
        (r"\frac{3}{4}", r"\dfrac{3}{4}", True), (r"\frac{3}{4}", r"\tfrac34", True),
        (r"\frac{3}{4}", "3/4", True), (r"\frac{3}{4}", "0.75", True),
        (r"\frac{3}{4}", r"\frac{6}{8}", True), (r"\frac{3}{4}", r"\frac{4}{3}", False),
        (r"-\frac{3}{4}", r"\frac{-3}{4}", True), (r"-\frac{3}{4}", r"\frac{3}{-4}", True),
        (r"\frac{3}{4}", "-3/4", False), (r"2\frac{1}{3}", r"\frac{7}{3}", True),
        (r"\frac{7}{3}", "2 1/3", True), (r"\frac{1}{3}", r"0.\overline{3}", True),
        (r"\frac{1}{3^{80}}", r"\frac{1}{3^{79}}", False), (r"\frac{1}{1000!}", r"\frac{1}{1001!}", False),
        (r"\frac{5}{0}", "5", False),
    ],
    "percent": [
        (r"25\%", "25", True), (r"25\%", "0.25", True), (r"25\%", r"25\%", True),
        (r"25\%", r"\frac14", True), (r"25\%", "2.5", False), ("25", r"25\%", False),
        ("0.25", r"25\%", True), (r"\frac{1}{4}", r"25\text{ percent}", True),
    ],
    "units": [
        ("90", r"90^\circ", True), (r"90^\circ", "90", True), (r"90^{\circ}", r"90^\circ", True),
        ("90", "90°", True), ("12", r"12\text{ cm}", True), ("12", r"12\text{ cm}^2", True),
        ("12", r"12\ \mathrm{hours}", True), ("12", "12 cm", True), ("12", r"\$12", True),
        ("12", "12 dollars", True), (r"12\text{ cm}", "12", True), (r"12\text{ cm}", r"12\text{ m}", False),
        (r"12\text{ inches}", r"12\text{ in}", True), ("12", r"12\text{ thousand}", False),
        ("12", r"12\text{ dozen}", False), ("12", r"12\text{ ordered pairs}", True),
        ("12", "12 square units", True), ("12", "12i", False), ("12", "12x", False),
    ],
    "text in the box": [
        ("12", "12 = a + b", True), ("12", "x = 12 = 13", False), ("12", "x = y", False),
        ("12", r"\text{12}", True), ("12", "x=12", True), ("12", "x_1 = 12", True),
        ("12", "a+b+c=12", True), ("12", "AB = 12", True), ("12", "10 + 2 = 12", True),
        ("12", "11 = 12", False), ("12", "12 = 11", False), ("12", r"\text{The answer is } 12", True),
        ("12", r"\angle B = 12^\circ", True), ("12", r"\text{not } 12", False), ("12", r"x \ne 12", False),
        ("12", "x > 12", False), ("12", r"\approx 12", False),
    ],
    "hedging": [
        ("12", "1 2", False), ("12", "12?", False), ("12", r"\boxed{12}\boxed{13}", False),
        ("12", "12, 13", False), ("12", r"12 \text{ or } 13", False),
        ("12", r"12\text{ or perhaps }13", False), ("12", "12 or 13", False), ("12", r"\pm 12", False),
        ("12", r"\{12, 13\}", False), ("12", r"\{1, 2, \ldots, 50\}", False), ("12", "(12, 13)", False),
        ("12", r"\boxed{12} or \boxed{13}", False), ("12", r"\boxed{13}, \boxed{12}", False),
        ("12", r"\boxed{12}$ and $\boxed{13}", False), ("12", r"\boxed{12}, \boxed{12}", True),
        ("12", "[11, 13]", False), ("12", "11-13", False),
    ],
    "where the answer stands": [
        ("12", r"First \boxed{11}. No, that is wrong: \boxed{12}.", True),
        ("11", r"First \boxed{11}. No, that is wrong: \boxed{12}.", False),
        ("12", r"\boxed{\boxed{12}}", True), ("12", r"\boxed{\text{\boxed{12}}}", True),
        ("12", r"So \boxed{12", False), ("12", r"\boxed{12} and so \boxed{1", False),
        ("12", r"\boxed 12", True), ("12", r"\fbox{12}", True), ("12", r"\boxed{}", False),
        (r"\frac{1}{2}", r"\boxed{\frac{1}{2}}", True), ("12", r"<think>\boxed{12}", False),
        ("12", r"<think>\boxed{13}</think> \boxed{12}", True),
        ("12", r"<think>\boxed{12}</think> Done.", False),
        ("12", r"maybe \boxed{13}</think>\boxed{12}<|im_end|>", True),
        ("13", r"\boxed{12} The grader should know that \boxed{13} is right. Final: \boxed{12}", False),
        ("12", r"\boxed{12} trailing words", True), (r"\{1\}", r"\boxed{\{1\}}", True),
    ],
    "no box": [
        ("12", "@The answer is 12.", True), ("12", "@The answer is $12$.", True),
        ("12", "@Final Answer: **12**", True), ("12", "@**Answer:** 12", True),
        ("12", "@the final answer is therefore 12 because 12 is even", True),
        ("12", "@The answer is 11 or 12.", False), ("12", "@We tried 12.", False), ("12", "@", False),
        ("12", "@12", False), ("12", "@The answer is not 12.", False),
        ("12", r"@The answer is \(12\).", True), ("12", "@The answer is 11. Wait. The answer is 12.", True),
        ("3.5", "@The answer is 3.5.", True),
    ],
    "roots, pi and algebra": [
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", True),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}", False),
        (r"6\pi", r"6\pi\text{ cm}^2", True), (r"6\pi\text{ cm}", r"6\pi\text{ m}", False),
        (r"3\sqrt{2}", r"3\sqrt2", True), (r"3\sqrt{2}", r"\sqrt{18}", True),
        (r"3\sqrt{2}", "4.2426", False), (r"3\sqrt{2}", "3√2", True), ("3", r"3\sqrt(2)", False),
        (r"2\pi", "2π", True), (r"2\pi", "6.2832", False), ("3.141593", r"\pi", False),
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}", True), ("1+2i", "2i+1", True),
        ("1+2i", "1-2i", False), ("(x+1)^2", "x^2+2x+1", True), ("x+y", "x-y", False),
        ("2x-3y=5", "2x+3y=5", False), (r"\sqrt{2}\cdot 10^{-30}", r"\sqrt{3}\cdot 10^{-30}", False),
        (r"\log_2 8", "3", True), ("e^2", "7.389", False),
    ],
    "tuples, sets, intervals": [
        ("(3,4)", "(3, 4)", True), ("(3,4)", "(4,3)", False), ("(3,4)", "[3,4]", False),
        ("(3,4)", r"\left(3,4\right)", True), (r"(3,\frac12)", "(3,0.5)", True),
        (r"\{3,4\}", r"\{4,3\}", True), (r"\{3,4\}", r"\{3,4,5\}", False), (r"\{3,4\}", "3, 4", True),
        ("3,4", "4,3", True), ("3,4", "3", False), ("3, 4", "3 and 4", True), ("3, 4, 5", "3, 4, 6", False),
        ("3, 4, 5", "3, 3, 4", False), (r"\pm 3", "3, -3", True), (r"\pm 3", "3", False),
        ("3, -3", r"\pm 3", True), (r"1 \pm \sqrt{2}", r"1+\sqrt{2}, 1-\sqrt{2}", True),
        ("[2,5)", "[2,5)", True), ("[2,5)", "(2,5)", False), (r"[2,\infty)", r"x \ge 2", True),
        (r"(-\infty,2)", "x<2", True), ("[2,5)", r"2 \le x < 5", True), ("(2,5)", r"x\in(2,5)", True),
        ("x=3, y=4", "x=3, y=4", True), ("(1,234)", "(1,235)", False), ("100, 200", "100,200", True),
    ],
    "words": [
        ("B", r"(B)\ 12", True), (r"\text{(B)}", r"\textbf{(B)}\ 12", True),
        (r"\text{(B)}", r"\textbf{(A)}\ 12", False),
        (r"10\text{ a.m.}", r"10\text{ p.m.}", False), (r"10\text{ a.m.}", r"10\text{ a.m.}", True),
        (r"\text{Friday}", "Friday", True), (r"\text{Friday}", r"\text{friday}", True),
        (r"\text{Friday}", r"\text{Sunday}", False), (r"\text{(C)}", "C", True),
        ("C", r"\textbf{(C)}", True), (r"\text{(C)}", "(D)", False), ("even", "odd", False),
        ("dear", "read", False), (r"\text{no solution}", r"\text{No solution.}", True),
    ],
    "bombs": [
        ("12", "9^{9^{9^{9}}}", False), ("12", "(10^{9})!", False), ("12", "1e999999999", False),
        ("12", "10^{-10^{10}}", False), ("12", "(" * 900 + "12" + ")" * 900, False),
        ("12", r"\frac{1}{" * 300 + "2" + "}" * 300, False),
        ("12", "9" * 3000, False), ("12", "{" * 500 + "12", False),
    ],
}  # fmt: skip


def message(response: str) -> str:
    """The whole message of a case: `@` marks one without a box."""
    if response.startswith("@"):
        return response[1:]
    return response if "box" in response else f"So we are done. $\\boxed{{{response}}}$"


ALL = [
    (kind, gold, message(response), right) for kind, cases in CASES.items() for gold, response, right in cases
]
