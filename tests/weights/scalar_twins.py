"""One code at a time, from the definitions of the number formats: the oracles of dequantisation."""

import math


def e4m3_value(code: int) -> float:
    """float8 e4m3fn: bias 7, subnormals, no infinity, NaN where all other bits are set."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 0xF, code & 0x7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


def e2m1_value(code: int) -> float:
    """float4 e2m1: bias 1, one subnormal, neither infinity nor NaN."""
    sign = -1.0 if code & 0x8 else 1.0
    exponent, mantissa = code >> 1 & 0x3, code & 0x1
    if exponent == 0:
        return sign * mantissa * 0.5
    return sign * (2 + mantissa) * 2.0 ** (exponent - 2)


def ue8m0_value(code: int) -> float:
    """A power of two with bias 127; the last code is NaN."""
    return math.nan if code == 255 else math.ldexp(1.0, code - 127)
