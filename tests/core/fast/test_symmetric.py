import pytest
import torch

from rlplast.core.fast.symmetric import HALVED, symmetric_product


@pytest.mark.parametrize("n", [3, HALVED - 1, HALVED, 2 * HALVED + 1])
def test_products_are_those_of_matmul(n: int) -> None:
    drawn = torch.randn(2, n + 5, n, generator=torch.Generator().manual_seed(n)).double()
    for x in (drawn, drawn[0], drawn.mT.contiguous().mT, drawn[:, ::2]):
        found = symmetric_product(x.mT, x)
        torch.testing.assert_close(found, x.mT @ x)


def test_polynomials_of_one_symmetric_matrix_may_be_multiplied() -> None:
    x = torch.randn(300, 300, generator=torch.Generator().manual_seed(1)).double() / 17
    gram = x.mT @ x
    a, b = 1.5 * torch.eye(300) - gram, gram @ gram
    torch.testing.assert_close(symmetric_product(a, b), a @ b)


def test_gradients_are_those_of_matmul() -> None:
    x = torch.randn(HALVED + 3, 7, generator=torch.Generator().manual_seed(2)).double()
    found = [x.clone().requires_grad_() for _ in range(2)]
    symmetric_product(found[0], found[0].mT).square().sum().backward()
    (found[1] @ found[1].mT).square().sum().backward()
    torch.testing.assert_close(found[0].grad, found[1].grad)
