#!/usr/bin/env bash
# mistral-common 1.13.1, Mistral's own preparation of prompts and pictures, which vLLM uses for its models.
# Expected: a picture is read as a viewer shows it: turned by its EXIF orientation, as photos of phones have it (Transformers' `load_image`
#           turns it), and a greyscale PNG of 16 bits as grey as it is.
# Seen:     the orientation is not looked at, so an upright photo lies on its side, with other numbers of rows and columns of
#           tokens. Every 16-bit grey from 256 of 65535 on is white, so scans and depth pictures are blank (Pillow's `convert`
#           cuts off instead of scaling). No error is raised; 8-bit grey and transparency are right.
source "$(dirname "$0")/begin.sh"
from_pypi mistral-common==1.13.1 opencv-python-headless==5.0.0.93 numpy==2.3.5 pillow==13.0.0
python - <<'PY'
import base64
import io
from importlib.metadata import version

import numpy
from mistral_common.protocol.instruct.chunk import ImageURL, ImageURLChunk
from mistral_common.tokens.tokenizers.image import ImageConfig, ImageEncoder, SpecialImageIDs
from PIL import Image

encoder = ImageEncoder(ImageConfig(image_patch_size=14, max_image_size=1024), SpecialImageIDs(img=1, img_break=2, img_end=3))


def encoded(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    url = f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
    return encoder(ImageURLChunk(image_url=ImageURL(url=url)))


def grey(picture):
    """The red of the middle, from 0 (black) to 1 (white)."""
    return round(float(encoded(picture, "PNG").image[0, 28, 28]) * 0.26862954 + 0.48145466, 2)


turned = Image.Exif()
turned[0x0112] = 6
photo = Image.new("RGB", (112, 56), (255, 0, 0))
shapes = {"plain": encoded(photo, "JPEG").image.shape, "to be turned": encoded(photo, "JPEG", exif=turned).image.shape}
greys = {
    "8 bits, half": grey(Image.new("L", (56, 56), 128)),
    "16 bits, half": grey(Image.fromarray(numpy.full((56, 56), 32768, numpy.uint16))),
    "16 bits, a hundredth": grey(Image.fromarray(numpy.full((56, 56), 655, numpy.uint16))),
}
print(f"mistral-common {version('mistral-common')}, channels, rows and columns: {shapes}")
print(f"1 is white: {greys}")
assert shapes["plain"] == (3, 56, 112) and greys["8 bits, half"] == 0.5, "changed"
assert shapes["to be turned"] == (3, 56, 112), "changed"
assert greys["16 bits, half"] == greys["16 bits, a hundredth"] == 1, "changed"
PY
