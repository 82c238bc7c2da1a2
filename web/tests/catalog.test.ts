import { describe, expect, it } from "vitest";
import { makeCatalog, search } from "../src/palette/catalog";
import { op } from "./pages";

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
  it("ranks the exact name first, then prefixes, then substrings, then the description", () => {
    expect(names("mean")).toEqual(["Mean", "Meaning", "MeanOfRows", "SegmentMeanSparse", "Other"]);
  });
  it("matches capitals, snake names, aliases and categories", () => {
    expect(names("sms")).toEqual(["SegmentMeanSparse"]);
    expect(names("mean_of")).toEqual(["MeanOfRows"]);
    expect(names("runpage")).toEqual(["Session"]);
    expect(names("holding")).toEqual(["Session"]);
  });
  it("requires every word", () => {
    expect(names("mean sparse")).toEqual(["SegmentMeanSparse"]);
    expect(names("mean nowhere")).toEqual([]);
  });
  it("returns the catalogue for an empty query, up to a limit", () => {
    expect(names("  ")).toHaveLength(6);
    expect(names("mean", 2)).toEqual(["Mean", "Meaning"]);
  });
});

describe("catalogue", () => {
  it("finds by name and alias", () => {
    expect(catalog.find("RunPage")?.name).toBe("Session");
    expect(catalog.find("Nothing")).toBeUndefined();
  });
  it("lists graph blocks first", () => {
    expect(catalog.categories.map((category) => category.name)).toEqual(["Holding", "Made up", "Reduce"]);
    expect(catalog.categories[2]!.records.map((record) => record.name)).toEqual(["Mean", "Other"]);
  });
});
