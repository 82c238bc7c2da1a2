import { describe, expect, it } from "vitest";
import { makeCatalog, search } from "../src/palette/catalog";
import { op } from "./model_pages";

const catalog = makeCatalog([
  op("SegmentMeanSparse", [], [], { doc: "A mean of rows." }),
  op("MeanOfRows", [], []),
  op("Mean", [], [], { category: "Reduce", layer: "dense" }),
  op("Other", [], [], { doc: "Nothing to do with a mean.", category: "Reduce", layer: "dense" }),
  op("Session", [], [], { category: "Holding", layer: "graph", aliases: ["RunPage"] }),
  op("Meaning", [], []),
]);
const names = (typed: string, most?: number) => search(catalog, typed, most).map((record) => record.name);

describe("search", () => {
  it("has the exact name first, then beginnings, then the inside, then the text", () => {
    expect(names("mean")).toEqual(["Mean", "Meaning", "MeanOfRows", "SegmentMeanSparse", "Other"]);
  });
  it("knows humps, snake names, aliases and categories", () => {
    expect(names("sms")).toEqual(["SegmentMeanSparse"]);
    expect(names("mean_of")).toEqual(["MeanOfRows"]);
    expect(names("runpage")).toEqual(["Session"]);
    expect(names("holding")).toEqual(["Session"]);
  });
  it("wants every word", () => {
    expect(names("mean sparse")).toEqual(["SegmentMeanSparse"]);
    expect(names("mean nowhere")).toEqual([]);
  });
  it("with nothing typed is the catalogue, and is bounded", () => {
    expect(names("  ")).toHaveLength(6);
    expect(names("mean", 2)).toEqual(["Mean", "Meaning"]);
  });
});

describe("catalogue", () => {
  it("finds by name and alias", () => {
    expect(catalog.find("RunPage")?.name).toBe("Session");
    expect(catalog.find("Nothing")).toBeUndefined();
  });
  it("shows blocks that hold a page together first", () => {
    expect(catalog.categories.map((category) => category.name)).toEqual(["Holding", "Made up", "Reduce"]);
    expect(catalog.categories[2]!.records.map((record) => record.name)).toEqual(["Mean", "Other"]);
  });
});
