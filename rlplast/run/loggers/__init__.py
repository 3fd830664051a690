"""Where the lines of a run go beside its folder: TensorBoard, Weights & Biases, MLflow, Trackio."""
