"""The checks of annotated shapes find what is wrong, and leave alone what is not annotated."""

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jaxtyping import Bool, Float32, Int32, TypeCheckError

from jaxsched.pytree import Pytree, static
from tests.support.shapes import assert_fields, check_functions_of, checked


class Inner(Pytree):
    count: Int32[Array, "P"]


class Outer(Pytree):
    inner: Inner
    share: Float32[Array, "P R"]
    mask: Bool[Array, "R"] | None
    rounds: int = static()


def outer(**changes) -> Outer:
    fields = {"inner": Inner(count=jnp.zeros(2, jnp.int32)), "share": jnp.zeros((2, 3)), "mask": None, "rounds": 4}
    return Outer(**fields | changes)


def test_fields_as_annotated_pass():
    assert_fields(outer())
    assert_fields(outer(mask=jnp.ones(3, bool)))
    assert_fields(jax.tree.map(lambda leaf: leaf, outer()))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"share": jnp.zeros((2, 3), jnp.int32)}, r"Outer\.share: .*int32\[2, 3\]"),
        ({"share": jnp.zeros(2)}, r"Outer\.share"),
        ({"mask": jnp.ones(2, bool)}, r"Outer\.mask"),  # R is 3
        ({"inner": Inner(count=jnp.zeros(3, jnp.int32))}, r"Outer\.share"),  # P is 3
        ({"inner": Inner(count=jnp.zeros(2))}, r"Outer\.inner\.count"),
        ({"rounds": "four"}, r"Outer\.rounds: .*str"),
    ],
)
def test_a_field_that_is_not_as_annotated_is_named(changes, where):
    with pytest.raises(AssertionError, match=where):
        assert_fields(outer(**changes))


def test_a_tree_of_other_leaves_can_still_be_made():
    """As JAX does all the time."""
    assert jax.tree.map(jnp.shape, outer()).share == (2, 3)
    assert jax.vmap(lambda one: one)(jax.tree.map(lambda leaf: leaf[None], outer())).share.shape == (1, 2, 3)


SOURCE = """
import functools

import jax
from jax import Array
from jaxtyping import Float32


def plain(x: int) -> int:
    return x


def dot(x: Float32[Array, "N"], y: Float32[Array, "N"], scale: float = 1.0) -> Float32[Array, ""]:
    return scale * (x * y).sum()


def power(x: Float32[Array, "N"], *, exponent: str = 2) -> Float32[Array, "N"]:
    if exponent < 0:
        raise ValueError("exponent: should be at least 0")
    return x**exponent


@functools.partial(jax.jit, static_argnums=1)
def compiled(x: Float32[Array, "N"], times: int) -> Float32[Array, "N"]:
    return x * times


class Thing:
    def method(self, x: Float32[Array, "N"]) -> Float32[Array, "N"]:
        return x[:1]
"""


def test_functions_are_checked_where_annotated(tmp_path, monkeypatch):
    (tmp_path / "shaped_module.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    check_functions_of("shaped_module")
    module = importlib.import_module("shaped_module")
    monkeypatch.delitem(sys.modules, "shaped_module")
    two, three = jnp.ones(2), jnp.ones(3)

    assert module.plain("no int") == "no int"
    assert checked(module.plain) is module.plain
    assert module.dot(two, two, 3) == 6
    assert module.dot(two, two, scale=np.float32(3)) == 6  # no shape, no check
    with pytest.raises(ValueError, match="at least 0"):
        module.power(two, exponent=-1)
    assert jax.vmap(module.dot)(jnp.ones((4, 2)), jnp.ones((4, 2))).shape == (4,)
    assert module.compiled(three, 2).shape == (3,)
    for wrong in (
        lambda: module.dot(two, three),
        lambda: jax.jit(module.dot)(two, three),
        lambda: module.dot(two.astype(int), two),
        lambda: module.compiled(jnp.ones((2, 2)), 2),
        lambda: module.Thing().method(two),
        lambda: module.power(two.astype(int)),
    ):
        with pytest.raises(TypeCheckError):
            wrong()
    assert not list(tmp_path.glob("__pycache__/*.pyc"))
