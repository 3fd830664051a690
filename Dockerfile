# rlplast with its demo, on a CPU or a GPU:
#   docker build -t rlplast . && docker run --rm -v "$PWD/runs:/study/runs" rlplast
#   docker build -t rlplast --build-arg TORCH=https://download.pytorch.org/whl/cu130 .
#   docker run --rm --gpus all -v "$PWD/runs:/study/runs" rlplast rlplast train sac/pendulum --out runs/sac
FROM python:3.11-slim
# Where PyTorch comes from: the CPU build, or one for a version of CUDA.
ARG TORCH=https://download.pytorch.org/whl/cpu
# Extras, such as [mujoco,box2d].
ARG EXTRAS=
# Compiled updates need a C++ compiler.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip install --no-cache-dir --extra-index-url "$TORCH" -c /source/constraints.txt "/source$EXTRAS" && rm -rf /source
WORKDIR /study
CMD ["sh", "-c", "rlplast study study/demo --out runs/demo && rlplast report runs/demo"]
