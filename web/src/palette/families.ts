// Families of ops: categories that share a colour and an icon. The colours are in styles/theme.css.

import type { LucideIcon } from "lucide-react";
import { Box, Braces, Calculator, Database, Dices, Grid3x3, Layers, ListOrdered, Play, Rows3, Rows4, Scale, Shapes, Sigma, SquareDashed } from "lucide-react";
import type { OpRecord } from "../transport/protocol";

export interface Family {
  name: string; // of its colour
  icon: LucideIcon;
}

const OTHER: Family = { name: "other", icon: Box };

/** By the category that a record names; a category that is not here has a neutral colour. */
const FAMILIES: Record<string, Family> = {
  "Sparse segment": { name: "segment", icon: Rows3 },
  "Weighted segment": { name: "weighted", icon: Scale },
  "Empty rows": { name: "empty", icon: SquareDashed },
  "Sparse tensor": { name: "sparse", icon: Braces },
  Plan: { name: "plan", icon: ListOrdered },
  Rows: { name: "rows", icon: Rows4 },
  Bags: { name: "rows", icon: Rows4 },
  "Dense rows": { name: "rows", icon: Rows4 },
  Arithmetic: { name: "dense", icon: Calculator },
  Elementwise: { name: "dense", icon: Calculator },
  Comparison: { name: "dense", icon: Calculator },
  Conversion: { name: "dense", icon: Calculator },
  Reduction: { name: "reduce", icon: Sigma },
  Losses: { name: "reduce", icon: Sigma },
  Matrix: { name: "matrix", icon: Grid3x3 },
  Images: { name: "matrix", icon: Grid3x3 },
  Arrangement: { name: "shape", icon: Shapes },
  Picking: { name: "shape", icon: Shapes },
  Sizes: { name: "shape", icon: Shapes },
  Session: { name: "session", icon: Play },
  State: { name: "state", icon: Database },
  Embedding: { name: "embedding", icon: Layers },
  Random: { name: "random", icon: Dices },
};

export function familyOf(record: OpRecord | undefined): Family {
  return (record && FAMILIES[record.category]) ?? OTHER;
}

export function familyOfCategory(category: string): Family {
  return FAMILIES[category] ?? OTHER;
}
