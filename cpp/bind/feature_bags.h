// The Python binding of feature_bags.h.
#pragma once
#include <nanobind/nanobind.h>

void bind_feature_bags(nanobind::module_& m);

// The number of layouts and batches that Python still refers to.
int feature_objects_alive();
