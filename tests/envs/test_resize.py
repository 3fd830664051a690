import cv2
import numpy as np

from rlplast.envs.resize import area_resize, box_taps, grey


def resize(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    return area_resize(
        picture, box_taps(picture.shape[0], height), box_taps(picture.shape[1], width)
    )


def test_every_pixel_is_the_mean_of_its_area() -> None:
    for height, rows, width, columns in ((7, 3, 10, 4), (12, 12, 9, 1), (5, 4, 21, 6)):
        picture = np.random.default_rng(0).integers(256, size=(height, width), dtype=np.uint8)
        fine = picture.repeat(rows, axis=0).repeat(columns, axis=1)
        sums = fine.reshape(rows, height, columns, width).sum(axis=(1, 3), dtype=np.int64)
        expected = (2 * sums + height * width) // (2 * height * width)
        np.testing.assert_array_equal(resize(picture, rows, columns), expected)


def test_every_colour_is_as_grey_as_in_opencv() -> None:
    values = np.arange(256, dtype=np.uint8)
    green, blue = np.meshgrid(values, values)
    for red in values:
        colours = np.stack([np.full_like(green, red), green, blue], axis=-1)
        np.testing.assert_array_equal(grey(colours), cv2.cvtColor(colours, cv2.COLOR_RGB2GRAY))
