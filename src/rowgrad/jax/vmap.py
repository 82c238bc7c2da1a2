def batched(*a):
    raise NotImplementedError
