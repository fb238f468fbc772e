#include "client/report/figures.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "client/report/figure_data.h"
#include "client/report/svg_chart.h"
#include "common/core/durable.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

bool isOwn(const fs::path& svg) {
  std::ifstream file(svg);
  std::string declaration, mark;
  return std::getline(file, declaration) && std::getline(file, mark) && mark == kSvgMark;
}

fs::path csvOf(fs::path svg) { return svg.replace_extension(".csv"); }

}  // namespace

std::vector<Figure> makeFigures(const std::vector<FigureGroup>& groups) {
  std::vector<GroupData> data;
  for (const FigureGroup& group : groups) data.push_back(readGroup(group));
  std::vector<Figure> figures = curveFigures(data);
  for (auto& figure : {stepFigure(data), bandwidthFigure(data)}) {
    if (figure) figures.push_back(*figure);
  }
  return figures;
}

std::vector<std::string> writeFigures(const std::string& folder,
                                      const std::vector<Figure>& figures) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throwCannotWrite(folder, "cannot be created", error.value());
  for (const Figure& figure : figures) {
    const fs::path svg = fs::path(folder) / (figure.name + ".svg");
    const bool hasSvg = fs::exists(svg, error);
    if ((hasSvg && isOwn(svg)) || (!hasSvg && !fs::exists(csvOf(svg), error))) continue;
    throw UsageError("not-a-figure",
                     (hasSvg ? svg : csvOf(svg)).string() + " was not written by --figures",
                     "give another folder with --figures, or remove this file");
  }
  std::vector<std::string> files;
  for (const Figure& figure : figures) {
    const fs::path svg = fs::path(folder) / (figure.name + ".svg");
    // The CSV file belongs to a figure only if there is an SVG file, so it is written last.
    writeFileDurably(svg.string(), figure.svg);
    writeFileDurably(csvOf(svg).string(), figure.csv);
    files.insert(files.end(), {svg.string(), csvOf(svg).string()});
  }
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path& path = entry.path();
    const auto isFile = [&](const std::string& file) { return file == path.string(); };
    if (path.extension() != ".svg" || !isOwn(path)) continue;
    if (std::any_of(files.begin(), files.end(), isFile)) continue;
    fs::remove(csvOf(path), error);
    fs::remove(path, error);
  }
  return files;
}

}  // namespace cleave
